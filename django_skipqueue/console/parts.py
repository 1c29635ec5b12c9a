"""What an optional feature (a part) adds to the console: a `PartConsole`. Workers do not import it."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.utils.translation import gettext

from ..models import Queue
from ..models.copies import call_of, spec_of
from ..queue.silence import can_be_reached
from ..values.fact import Fact
from ..values.part import installed_parts

if TYPE_CHECKING:
    from django.db.models import Q
    from django.http import HttpRequest, HttpResponse

    from ..models import Job, Worker
    from ..models.job import AbstractJob
    from ..queue.store import Store
    from ..values.records import EncodedCall, JobSpec
    from .admin.dashboard import Card, Situation
    from .admin.queue_forms import SettingForm
    from .cli.subcommand import Subcommand
    from .metrics.catalogue import Scraped
    from .queues_and_workers import QueueRate, Workforce
    from .rules.rule import Rule
    from .verbs.verb import Verb


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PartNotice:
    """A notice on a job's page."""

    template: str
    about: Any
    """The template's variable `about`."""


@dataclass(frozen=True, kw_only=True)
class PartPage:
    """An additional page of the admin."""

    name: str
    """The name of the page's URL is `admin:django_skipqueue_job_NAME`."""
    path: str
    view: Callable[..., "HttpResponse"]
    """The function is called with the `JobAdmin`, the request and the values in the path, only for `methods`, and only
    for users who may view jobs."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    permission: str = ""
    """A permission that the user needs in addition to viewing jobs, or empty."""


@dataclass(frozen=True, kw_only=True)
class BarEntry:
    """An entry of the navigation bar above every page of the admin."""

    label: Any
    page: str
    """The name of its page, as in `address_of`. If it is a list, the entry is highlighted on all pages of the model."""
    others: tuple[str, ...] = ()
    """The entry is also highlighted on pages whose names begin with one of these texts."""
    place: int
    """Entries are sorted by this number."""
    permission: str = "view_job"
    """Only users with this permission see the entry."""
    is_shown: Callable[[], bool] = lambda: True
    below: str = ""
    """The page of another entry. If set, this entry is only shown on the other entry's pages."""
    rules: tuple[str, ...] = ()
    """The entry shows how many problems these rules have found."""

    def nearness(self, page: str) -> int:
        """Return how many leading characters of the page's name match this entry. The best match becomes current."""
        beginnings = (self.page.removesuffix("changelist"), *self.others)
        return max((len(beginning) for beginning in beginnings if page.startswith(beginning)), default=0)


@dataclass(frozen=True, kw_only=True)
class PartSection(Generic[T]):
    """A section of the dashboard, or of another page."""

    name: str
    template: str
    content: Callable[[T], Any]
    """Returns the template's variable `content`. The argument is what the page is about."""
    css: str = ""
    """The section's style sheet, or empty."""
    after: str = ""
    """The name of the dashboard's section that comes before it; empty if it is the first section."""
    is_of_queue: bool = False
    """Whether the page of a queue shows it too."""


@dataclass(frozen=True, kw_only=True)
class PartCard:
    """A card of the dashboard."""

    make: Callable[["Situation"], "Card"]
    after: str
    """The function name of the card that comes before it."""


@dataclass(frozen=True, kw_only=True)
class PartStatus:
    """What `skipqueue status` prints about a part."""

    as_json: Mapping[str, Any]
    """Fields that `--json` adds to the object."""
    lines: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PartFact:
    """An entry in the list of facts on a job's page."""

    template: str
    content: Callable[["AbstractJob"], Any]
    """Returns what the template shows, as `content`. Its argument may be the row of a pruned job."""


@dataclass(frozen=True, kw_only=True)
class External:
    """What a part says about jobs that an external system, such as another job queue, runs.

    Processes without slots hand these jobs over to the external system.
    """

    holder: Callable[["Job"], str]
    """Returns the name of the external system that has this running job; empty if a worker has it."""
    explain: Callable[["Job", datetime, "Workforce"], str]
    """Explains what a queued or running job waits for; empty if the console explains it."""
    unserved: str
    """The note of `skipqueue status` for a queue of the external system if no process serves the queue."""
    processes: Callable[[int], str]
    """Returns a number of processes that hand jobs over, in words."""
    cells: Callable[["Store", Sequence["Worker"]], Mapping[str, Mapping[str, str]]]
    """Returns cells for the list of workers, by row id and column name. An external row shows only these cells. The
    cell `detail` describes a process that hands jobs over."""


@dataclass(frozen=True)
class QueueSetting(Generic[T]):
    """The current value of a queue's option, and whether somebody has changed it."""

    by_settings: T | None
    """The value in the settings; `None` means unlimited."""
    changed_to: T | None = None
    """The value in the queue's row; 0 means unlimited; `None` if nobody has changed it."""

    @property
    def is_changed(self) -> bool:
        return self.changed_to is not None

    @property
    def value(self) -> T | None:
        """The value that applies; `None` means unlimited."""
        if self.changed_to is None:
            return self.by_settings
        return None if self.changed_to == 0 else self.changed_to


@dataclass(frozen=True, kw_only=True)
class QueueOption(Generic[T]):
    """An option that operators can set for each queue: where it is stored, its column in lists, and its page."""

    name: str
    """The name of its column, for the style sheet."""
    column: str
    """The database column in the table of queues."""
    queues_in_settings: Callable[[], Collection[str]]
    """Returns the queues that have a value in the settings, even `None`."""
    by_settings: Callable[[str], tuple[str | None, T | None]]
    """Returns the key of a queue's jobs, or `None`, and the value in the settings."""
    form: type["SettingForm"]
    change: Callable[..., None]
    follow_settings: Callable[..., None]
    label: Any
    """The label of its column."""
    is_always_shown: bool = False
    """Whether the column is shown even if no queue has a value."""
    page: str
    """The last part of the page's URL, and the name of its URL pattern."""
    button: Any
    button_in_full: Any
    """The button's label with the queue's name, for screen readers."""
    title: Any
    heading: Any
    explanation: Any
    unset_text: Any
    """The text for a queue that does not have this setting."""
    changed_message: Any
    """Shown after a change, with the queue and the value."""
    follows_settings_message: Any
    """Shown after an operator has made the queue follow the settings again."""

    @property
    def fact(self) -> Fact[Any]:
        """The fact about a queue that shows the value; `None` means unlimited."""

        def value(queue: Any) -> Any:
            setting = queue.settings.get(self.name)
            return None if setting is None or setting.value is None else self.form.as_typed(setting.value)

        return Fact(
            self.name,
            self.label,
            value,
            field=self.name.replace("-", "_"),
            is_optional=not self.is_always_shown,
        )

    def of_all(self) -> dict[str, QueueSetting[T]]:
        """Return the settings of all queues that have one, by the queue's name, even if the value is `None`."""
        changed_queues = Queue.objects.filter(**{f"{self.column}__isnull": False})
        changed_values = dict(changed_queues.values_list("name", self.column))
        settings_of_queues = {}
        for queue_name in sorted({*self.queues_in_settings(), *changed_values}):
            _key, value_in_settings = self.by_settings(queue_name)
            settings_of_queues[queue_name] = QueueSetting(value_in_settings, changed_values.get(queue_name))
        return settings_of_queues

    def of(self, queue_name: str) -> QueueSetting[T] | None:
        """Return the setting of this queue; `None` if its jobs have no key, so that a value would have no effect."""
        changed, (key, value) = self.changed_in_row(queue_name), self.by_settings(queue_name)
        return None if changed is None and key is None else QueueSetting(value, changed)

    def changed_in_row(self, queue_name: str) -> T | None:
        """Return the value in the queue's row; `None` if nobody has changed it."""
        value: T | None = Queue.objects.filter(name=queue_name).values_list(self.column, flat=True).first()
        return value


@dataclass(frozen=True, kw_only=True)
class PartConsole:
    """Everything that one part adds to the console. All fields are optional."""

    carried_parameters: Callable[[], Mapping[str, str]] | None = None
    """Returns query parameters that every URL in the admin's pages must have."""
    over_page: Callable[["HttpRequest"], PartNotice | None] | None = None
    """Returns a notice that every page of the admin shows above its content."""
    admin_view: Callable[[Any, Callable[..., "HttpResponse"]], Callable[..., "HttpResponse"]] | None = None
    """Wraps each view of the admin. The first argument is the `OwnViews` to which the view belongs."""
    why_held_elsewhere: Callable[["Job", "JobSpec", "EncodedCall"], str] | None = None
    """Explains that a job cannot be copied because a job in another database holds its unique key; otherwise empty. The
    arguments are the job, and the copy's spec and call."""
    subcommands: tuple["Subcommand", ...] = ()
    verbs: tuple["Verb", ...] = ()
    """Verbs of operators, for the pages of jobs, the lists of jobs, and the command line."""
    rules: tuple["Rule", ...] = ()
    metrics: tuple["Scraped", ...] = ()
    known_since: Callable[["Store"], Mapping[tuple[str, str], datetime]] | None = None
    """Returns since when problems have been known, by the rule's code and the subject."""
    cards: tuple[PartCard, ...] = ()
    sections: tuple[PartSection["Situation"], ...] = ()
    task_sections: tuple[PartSection[str], ...] = ()
    """Sections of a task's page. Their `content` gets the task's name."""
    queue_rates: Callable[["Store"], Mapping[str, "QueueRate"]] | None = None
    """Returns the throughput of queues in which jobs have ended recently, by name; an empty name means all queues."""
    usual_waits: Callable[["Store", Sequence[str]], Mapping[str, float]] | None = None
    """Returns for how many seconds the oldest job of each of these queues usually waits at this hour."""
    usual_runs: Callable[["Store", Sequence[str]], Mapping[str, float]] | None = None
    """Returns for how many seconds an attempt of each of these tasks usually runs at most."""
    reported_failures: Callable[["Store", Sequence["Job"]], int] | None = None
    """Returns how many of these failed or retrying jobs the part's own rules report. No other rule then reports these
    jobs again. The jobs are given with their metadata."""
    known_queues: Callable[["Store", int], list[str]] | None = None
    """Returns the names of queues that have ever had jobs. The second argument is the maximum number of names."""
    status: Callable[["Store"], PartStatus] | None = None
    job_facts: tuple[PartFact, ...] = ()
    job_filters: Callable[[], Iterable[type[Any]]] | None = None
    """Imports and returns filters for the list of jobs: subclasses of `GroupFilter` or `KeyFilter`."""
    job_columns: Mapping[str, str] = field(default_factory=dict)
    """The part's columns in the job table that `skipqueue show` prints, each with its label."""
    why_unchanged: Callable[[int], str] | None = None
    """Explains why a verb has not changed the job with this id; empty if the part is not the reason."""
    why_existing: Callable[["Job", "Job"], str] | None = None
    """Explains why copying a job has returned an existing job. The arguments are the job and the existing job."""
    job_keys: tuple[str, ...] = ()
    """The part's columns with keys, in which `skipqueue show` masks secrets."""
    holds_up: Callable[["Job"], bool] | None = None
    """Returns whether a failed job makes other jobs wait until somebody retries or discards it."""
    holding_up: "Q | None" = None
    """The condition that selects the failed jobs for which `holds_up` is true."""
    pruned: Callable[[], Mapping[str, bool]] | None = None
    """Returns what commands print about pruned jobs: past participles, each with whether it applies to the jobs."""
    after_prune: Callable[["Store"], None] | None = None
    """Called after a command has pruned the jobs of a database."""
    bar_entries: tuple[BarEntry, ...] = ()
    pages: Callable[[], Iterable[PartPage]] = tuple
    """Imports and returns additional pages of the admin."""
    about_job: Callable[["Job"], PartNotice | None] | None = None
    """Returns a notice for a job's page, shown below the outcome."""
    section_of_job: Callable[["AbstractJob"], PartNotice | None] | None = None
    """Returns a section of the page of a job, shown below the facts. The job may no longer be in the job table."""
    export: Callable[["Job"], Mapping[str, Any]] | None = None
    """Returns what `skipqueue show --json` prints of a job beside its columns."""
    lines_about: Callable[["Job"], Iterable[str]] | None = None
    """Returns the lines that `skipqueue show` prints of a job below its facts."""
    on_delete: Callable[[Collection[int], str], None] | None = None
    """Called in the transaction that deletes jobs. The arguments are the jobs' ids and the database's alias."""
    find_job: Callable[["HttpRequest", str, str], str] | None = None
    """Returns the URL of the page of a job that is no longer in the job table; empty if there is none, or if the user
    may not see it. The arguments are the request, the job's id, and the name of the admin site."""
    explain: Callable[["Job", datetime], str] | None = None
    """Explains why a blocked job waits; empty if it does not wait because of this part."""
    queue_options: tuple[QueueOption[Any], ...] = ()
    """Options that operators can set for each queue."""

    external: External | None = None


def consoles() -> tuple[PartConsole, ...]:
    """Return the `PartConsole` of each part that has one."""
    return tuple(part.console() for part in installed_parts() if part.console)


def sections_of(job: "AbstractJob") -> list[PartNotice]:
    """Return the sections that parts have on the page of a job."""
    return [section for part in consoles() if part.section_of_job and (section := part.section_of_job(job))]


def pages() -> tuple[PartPage, ...]:
    """Return the additional admin pages of all parts."""
    return tuple(page for part in consoles() for page in part.pages())


def queue_options() -> tuple[QueueOption[Any], ...]:
    return tuple(option for console in consoles() for option in console.queue_options)


def usual_waits(store: "Store", queue_names: Sequence[str]) -> dict[str, float]:
    """Return how many seconds the oldest job of each of these queues usually waits at this hour, if known."""
    waits_by_part = (console.usual_waits(store, queue_names) for console in consoles() if console.usual_waits)
    return {name: seconds for waits in waits_by_part for name, seconds in waits.items()}


def usual_runs(store: "Store", tasks: Iterable[str]) -> dict[str, float]:
    """Return how many seconds an attempt of each of these tasks usually runs at most, if known."""
    names = sorted(set(tasks))
    runs_by_part = (console.usual_runs(store, names) for console in consoles() if console.usual_runs and names)
    return {name: seconds for runs in runs_by_part for name, seconds in runs.items()}


def why_unchanged(job_id: int) -> str:
    """Explain why a verb has not changed this job; empty if no part is the reason."""
    reasons = (part.why_unchanged(job_id) for part in consoles() if part.why_unchanged)
    return next(filter(None, reasons), "")


def why_existing(job: "Job", other: "Job") -> str:
    """Explain why copying this job has returned an existing job."""
    reasons = (part.why_existing(job, other) for part in consoles() if part.why_existing)
    return next(filter(None, reasons), "")


def why_held_elsewhere(job: Any) -> str:
    """Explain that a job in another database holds, or may hold, this job's unique key; otherwise empty."""
    spec, call = spec_of(job), call_of(job, json.dumps(job.args), json.dumps(job.kwargs))
    reasons = (console.why_held_elsewhere(job, spec, call) for console in consoles() if console.why_held_elsewhere)
    return next(filter(None, reasons), "")


def unreachable(alias: str) -> str:
    """Return a message if the database cannot be reached; otherwise empty."""
    if can_be_reached(alias):
        return ""
    return gettext("The database %(alias)s cannot be reached") % {"alias": alias} + "."


def externals() -> tuple[External, ...]:
    return tuple(console.external for console in consoles() if console.external)


def holder_of(job: "Job") -> str:
    """Return the name of the external system that has this running job; empty if a worker has it."""
    holders = (external.holder(job) for external in externals())
    return next(filter(None, holders), "")


def processes_in_words(number: int) -> str:
    """Return a number of processes that hand jobs over, in words; empty if no part has such processes."""
    return next((external.processes(number) for external in externals()), "")

"""What parts give to operators: a `PartConsole` for each part. The admin and the commands read it; workers do not."""

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


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PartNotice:
    """A notice on the page of a job."""

    template: str
    about: Any
    """What the template shows, as `about`."""


@dataclass(frozen=True, kw_only=True)
class PartPage:
    """A page of the admin beside the list of jobs."""

    name: str
    """Its address is that of `admin:django_skipqueue_job_NAME`."""
    path: str
    view: Callable[[Any, "HttpRequest"], "HttpResponse"]
    """Called with the `JobAdmin`, for one of the methods, by somebody who may view jobs."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    permission: str = ""
    """A further permission that the user needs, beside that to view jobs; an empty string: none."""


@dataclass(frozen=True, kw_only=True)
class BarEntry:
    """An entry of the bar over every page of the admin."""

    label: Any
    page: str
    """The name of its page, as `address_of` takes it. A list marks the entry on all pages of its model."""
    others: tuple[str, ...] = ()
    """The beginnings of the names of further pages on which it is marked."""
    place: int
    """The entries stand in the order of these numbers."""
    permission: str = "view_job"
    """Who has it sees the entry."""
    is_shown: Callable[[], bool] = lambda: True
    below: str = ""
    """The page of another entry: this one is shown on its pages only."""
    rules: tuple[str, ...] = ()
    """The codes of the rules of whose findings in the verdict the entry shows the number."""

    def nearness(self, page: str) -> int:
        """The length of the beginning that this entry has of the name of a page; 0: the page has another entry."""
        beginnings = (self.page.removesuffix("changelist"), *self.others)
        return max((len(each) for each in beginnings if page.startswith(each)), default=0)


@dataclass(frozen=True, kw_only=True)
class PartSection(Generic[T]):
    """A section of the dashboard, or of another page."""

    name: str
    template: str
    content: Callable[[T], Any]
    """Returns what the template shows, as `content`. Its argument: what the page is about."""
    css: str = ""
    """The style sheet of the section; an empty string if it has none of its own."""
    after: str = ""
    """The name of the section of the dashboard that comes before it; an empty string: it is the first section."""
    is_of_queue: bool = False
    """Whether it is about a queue, so that the page of a queue also has it."""


@dataclass(frozen=True, kw_only=True)
class PartCard:
    """A card of the dashboard."""

    make: Callable[["Situation"], "Card"]
    after: str
    """The name of the function of the card that comes before it."""


@dataclass(frozen=True, kw_only=True)
class PartStatus:
    """What `skipqueue status` says about a part."""

    as_json: Mapping[str, Any]
    """Fields of the object that `--json` prints."""
    lines: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PartFact:
    """A fact on the page of a job, in its list of facts."""

    template: str
    content: Callable[["AbstractJob"], Any]
    """Returns what the template shows, as `content`. Its argument may be the row of a pruned job."""


@dataclass(frozen=True, kw_only=True)
class External:
    """What a part says of who runs jobs outside of the workers, and of the processes that hand these jobs on."""

    holder: Callable[["Job"], str]
    """Returns the name of who has this running job; an empty string if a process of ours has it."""
    explain: Callable[["Job", datetime, "Workforce"], str]
    """Says what a queued or a running job waits for; an empty string if the console says it."""
    unserved: str
    """What `skipqueue status` notes of a queue of theirs that no process serves."""
    processes: Callable[[int], str]
    """Returns a number of these processes in words."""
    cells: Callable[["Store", Sequence["Worker"]], Mapping[str, Mapping[str, str]]]
    """Returns cells for the list of workers, by the id of the row and the name of the column. A row that is external
    shows these cells alone. The cell `detail` says what a process of the queue is."""


@dataclass(frozen=True)
class QueueSetting(Generic[T]):
    """The value of an option that holds now for a queue, and whether somebody has changed it."""

    by_settings: T | None
    """The value of the settings; `None` means unlimited."""
    changed: T | None = None
    """The value of the queue's row; 0 means unlimited; `None`: nobody has changed it."""

    @property
    def is_changed(self) -> bool:
        return self.changed is not None

    @property
    def value(self) -> T | None:
        """The value that holds; `None` means unlimited."""
        return self.by_settings if self.changed is None else self.changed or None


@dataclass(frozen=True, kw_only=True)
class QueueOption(Generic[T]):
    """What a part lets operators set for each queue: where it is stored, its column in lists, and its page."""

    name: str
    """Of its column, for the style sheet."""
    column: str
    """Of the row of a queue."""
    names: Callable[[], Collection[str]]
    """The queues that have a value in the settings, `None` included."""
    by_settings: Callable[[str], tuple[str | None, T | None]]
    """The key of the jobs of a queue, `None` if they have none, and the value of the settings."""
    form: type["SettingForm"]
    change: Callable[..., None]
    follow_settings: Callable[..., None]
    label: Any
    """Of its column."""
    is_always_shown: bool = False
    """Whether it has a column even if no queue has a value."""
    page: str
    """The end of its address, and its name."""
    button: Any
    button_in_full: Any
    """The button with the name of the queue, for a screen reader."""
    title: Any
    heading: Any
    explanation: Any
    without: Any
    """Says that the queue has no such setting."""
    changed: Any
    follows_settings: Any

    @property
    def fact(self) -> Fact[Any]:
        """The fact of a queue: the value that holds; `None` means unlimited."""

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
        """The settings of the queues that have one, by the name of the queue, `None` in the settings included."""
        changed = dict(Queue.objects.filter(**{f"{self.column}__isnull": False}).values_list("name", self.column))
        names = sorted({*self.names(), *changed})
        return {name: QueueSetting(self.by_settings(name)[1], changed.get(name)) for name in names}

    def of(self, queue_name: str) -> QueueSetting[T] | None:
        """The setting of this queue; `None`: its jobs have no key, so a value would hold for no job."""
        changed, (key, value) = self.changed_in_row(queue_name), self.by_settings(queue_name)
        return None if changed is None and key is None else QueueSetting(value, changed)

    def changed_in_row(self, queue_name: str) -> T | None:
        """The value of the queue's row; `None`: nobody has changed it."""
        found: T | None = Queue.objects.filter(name=queue_name).values_list(self.column, flat=True).first()
        return found


@dataclass(frozen=True, kw_only=True)
class PartConsole:
    """What one part gives. Each default is "nothing"."""

    carried: Callable[[], Mapping[str, str]] | None = None
    """Returns what every address in the pages of the admin carries in its query."""
    over_page: Callable[["HttpRequest"], PartNotice | None] | None = None
    """Returns what every page of the admin shows over its content."""
    admin_view: Callable[[Any, Callable[..., "HttpResponse"]], Callable[..., "HttpResponse"]] | None = None
    """Wraps each view of the admin. Its first argument: the `OwnViews` that has the view."""
    why_held_elsewhere: Callable[["Job", "JobSpec", "EncodedCall"], str] | None = None
    """Says that a job cannot be copied because a job of another database holds its unique key; else an empty string.
    Its arguments: the job, and the copy."""
    subcommands: tuple["Subcommand", ...] = ()
    rules: tuple["Rule", ...] = ()
    metrics: tuple["Scraped", ...] = ()
    known_since: Callable[["Store"], Mapping[tuple[str, str], datetime]] | None = None
    """Returns since when problems are known, by the codes of their rules and their subjects."""
    cards: tuple[PartCard, ...] = ()
    sections: tuple[PartSection["Situation"], ...] = ()
    task_sections: tuple[PartSection[str], ...] = ()
    """Sections of the page of a task, about the task of this name."""
    queue_rates: Callable[["Store"], Mapping[str, "QueueRate"]] | None = None
    """Returns the rates of the queues in which jobs have ended lately, by name; an empty name: of all queues."""
    usual_waits: Callable[["Store", Sequence[str]], Mapping[str, float]] | None = None
    """Returns for how many seconds the oldest job of each of these queues usually waits at this hour."""
    usual_runs: Callable[["Store", Sequence[str]], Mapping[str, float]] | None = None
    """Returns for how many seconds an attempt of each of these tasks usually runs at most."""
    known_queues: Callable[["Store", int], list[str]] | None = None
    """Returns the names of queues that have ever had jobs. Its second argument: the maximum of names."""
    status: Callable[["Store"], PartStatus] | None = None
    job_facts: tuple[PartFact, ...] = ()
    job_filters: Callable[[], Iterable[type[Any]]] | None = None
    """Imports and returns filters of the list of jobs, each an `admin.jobs.filters.GroupFilter` or `KeyFilter`."""
    job_columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of the part in the job table that `skipqueue show` prints, each with its label."""
    why_unchanged: Callable[[int], str] | None = None
    """Says why a verb of operators has left the job with this id as it was; an empty string if it was not the part."""
    why_existing: Callable[["Job", "Job"], str] | None = None
    """Says why the enqueue of a copy of a job has returned another job. Its arguments: the job, and the other job."""
    job_keys: tuple[str, ...] = ()
    """Columns of the part with keys, which may have secrets in them. `skipqueue show` prints them masked."""
    holds_up: Callable[["Job"], bool] | None = None
    """Says whether a failed job holds other jobs up until somebody retries or discards it."""
    holding_up: "Q | None" = None
    """The condition of the failed jobs that hold other jobs up."""
    pruned: Callable[[], Mapping[str, bool]] | None = None
    """Returns what becomes of jobs that are pruned, for the output of commands, by name."""
    after_prune: Callable[["Store"], None] | None = None
    """Called when a command has pruned the jobs of a database."""
    bar_entries: tuple[BarEntry, ...] = ()
    pages: Callable[[], Iterable[PartPage]] = tuple
    """Imports and returns pages of the admin."""
    about_job: Callable[["Job"], PartNotice | None] | None = None
    """Returns what the page of a job says below the job's outcome."""
    on_delete: Callable[[Collection[int], str], None] | None = None
    """Called in the transaction that deletes jobs. Its arguments: their ids, and the alias of the database."""
    find_job: Callable[["HttpRequest", str, str], str] | None = None
    """Returns the address of the page of a job that has left the job table; an empty string if there is none, or the
    user may not see it. Its arguments: the request, the id, and the name of the admin site."""
    explain: Callable[["Job", datetime], str] | None = None
    """Says why a blocked job waits; an empty string if it does not wait for this part."""
    queue_options: tuple[QueueOption[Any], ...] = ()
    """What operators may set for each queue."""

    external: External | None = None


def consoles() -> tuple[PartConsole, ...]:
    """What each part gives."""
    return tuple(part.console() for part in installed_parts() if part.console)


def pages() -> tuple[PartPage, ...]:
    """The pages of the parts beside the list of jobs."""
    return tuple(page for part in consoles() for page in part.pages())


def queue_options() -> tuple[QueueOption[Any], ...]:
    return tuple(option for console in consoles() for option in console.queue_options)


def usual_waits(store: "Store", queue_names: Sequence[str]) -> dict[str, float]:
    """For how many seconds the oldest job of each of these queues usually waits at this hour, where that is known."""
    found = (console.usual_waits(store, queue_names) for console in consoles() if console.usual_waits)
    return {name: seconds for waits in found for name, seconds in waits.items()}


def usual_runs(store: "Store", tasks: Iterable[str]) -> dict[str, float]:
    """For how many seconds an attempt of each of these tasks usually runs at most, where that is known."""
    names = sorted(set(tasks))
    found = (console.usual_runs(store, names) for console in consoles() if console.usual_runs and names)
    return {name: seconds for runs in found for name, seconds in runs.items()}


def why_unchanged(job_id: int) -> str:
    """Why a verb has left this job as it was; an empty string if no part has kept it so."""
    return next(filter(None, (part.why_unchanged(job_id) for part in consoles() if part.why_unchanged)), "")


def why_existing(job: "Job", other: "Job") -> str:
    """Why the enqueue of a copy of this job has returned another job."""
    return next(filter(None, (part.why_existing(job, other) for part in consoles() if part.why_existing)), "")


def why_held_elsewhere(job: Any) -> str:
    """The message for a job whose unique key a job of another database holds, or may hold; else an empty string."""
    spec, call = spec_of(job), call_of(job, json.dumps(job.args), json.dumps(job.kwargs))
    reasons = (each.why_held_elsewhere(job, spec, call) for each in consoles() if each.why_held_elsewhere)
    return next(filter(None, reasons), "")


def unreachable(alias: str) -> str:
    """The message that the database of a key cannot be reached; an empty string if it can."""
    if can_be_reached(alias):
        return ""
    return gettext("The database %(alias)s cannot be reached") % {"alias": alias} + "."


def externals() -> tuple[External, ...]:
    return tuple(console.external for console in consoles() if console.external)


def holder_of(job: "Job") -> str:
    """The name of who has this running job outside of the workers; an empty string if a process of ours has it."""
    return next(filter(None, (external.holder(job) for external in externals())), "")


def processes_in_words(number: int) -> str:
    """A number of processes that hand jobs on, in words; an empty string if no part has any."""
    return next((external.processes(number) for external in externals()), "")

"""A verb is something that operators can do to jobs, with its options and its texts.

Each text is a whole sentence, so that it can be translated. `Button` and `Action` say which values a text may contain.

Only the verb's SQL statement decides whether a job changes. A page shows buttons by the status that the page has read.
If the status has changed since, the job does not change, and a message says why.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from django.db.models import Q

from ...conf import settings
from ...models import Job, Status
from ...queue.store import Store
from ..parts import consoles, holder_of
from .options import VerbOption

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Text: TypeAlias = "str | _StrPromise"
PluralText: TypeAlias = Any
"""A text with a singular and a plural form, chosen by `count`. Django's types do not allow `%` with a mapping."""

Changed: TypeAlias = dict[int, int]
"""The id of each changed job, with the id of the job to show next: the same id, or the id of its copy."""


@dataclass(frozen=True)
class Instruction:
    user: str
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the verb's options, by name. An option that is missing or `None` has its default."""


@dataclass(frozen=True, kw_only=True)
class Button:
    """How a verb is shown on a job's page.

    The texts may contain the `id`, the `queue`, the id of a `copy`, and the verb's options by name.
    """

    label: Text
    hint: Text
    """What the verb does, in a sentence or two."""
    question_title: Text
    """The title of the question, without its question mark."""
    done: Text
    """The message after the verb."""
    asks: bool = True
    """Whether a page asks for confirmation first."""
    is_primary: bool = False
    """Whether the button is highlighted."""
    hint_if_external: Text = ""
    done_if_external: Text = ""
    """Another hint and message for a job that an external system runs, or empty."""

    def for_job(self, job: Job) -> "Button":
        if not self.hint_if_external or not holder_of(job):
            return self
        return replace(self, hint=self.hint_if_external, done=self.done_if_external)


@dataclass(frozen=True, kw_only=True)
class Action:
    """How a verb for many jobs is shown. The texts may contain the `number` of jobs; `count` chooses the plural."""

    label: Text
    explanation: Text
    """What the verb does, in a few sentences."""
    question_title: PluralText
    """The title of the question, without its question mark."""
    done: PluralText
    """The message after the verb."""
    about_external: Text = ""
    """One more sentence of the explanation, if the project has jobs that an external system runs."""

    @property
    def full_explanation(self) -> str:
        external_sentences = [self.about_external] if settings.external_queues else []
        return " ".join(map(str, [self.explanation, *external_sentences])).strip()


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    """The name, used for its view and its action, and in the column `operations`."""
    help: str
    """The help text of its subcommand."""
    permission: str
    """The required permission: `retry` stands for `django_skipqueue.retry_job`."""
    statuses: Collection[str]
    """The verb can change jobs in these statuses."""
    fits_what_holds_up: bool = False
    """Whether the verb can also change failed jobs for which other jobs wait."""
    offered_for: Collection[str] | None = None
    """Pages show the verb for jobs in these statuses; `None` means all `statuses`."""
    is_for: Callable[[Job], bool] | None = None
    """Returns whether the page of this job shows the verb, if the job's status allows it; `None` means always."""
    default_statuses: tuple[str, ...] | None = None
    """If a command's options name no status, it searches for jobs in these statuses. `None` means all `statuses`; if
    empty, the options must name a status."""
    options: tuple[VerbOption, ...] = ()
    change: Callable[..., Iterable[int]]
    """Changes the jobs. The arguments are a `Store`, the ids, the options, `by` and `reason`. Returns the ids of the
    changed jobs, or a dict of these ids with the ids of their copies."""
    exception: str = "that have just changed"
    """On the command line, the reason why jobs were not changed although their status allows the verb."""
    why_unchanged: Callable[[Job, Instruction], str] | None = None
    """Returns why a job is not changed although its status allows the verb; empty if there is no such reason."""
    is_dangerous: bool = False
    """Whether the confirmation button is red."""
    leaves_rows: bool = True
    """Whether the jobs' rows remain, so that they can store the reason."""
    button: Button | None = None
    action: Action
    done: Text
    """A past participle, for the history, the terminal, and Django's log."""
    leads_to: Status
    """The status of a changed job, which decides the verb's colour in the history."""
    log_entry: Text = ""
    """The entry in Django's log about a changed job, if not `done`; may contain the id of the `copy`."""
    log_entry_of_copy: Text = ""
    """If the verb makes a copy, the entry in Django's log about the copy; may contain the `id` of the job."""

    @property
    def slug(self) -> str:
        return self.name.replace("_", "-")

    @property
    def action_name(self) -> str:
        return f"{self.name}_selected"

    @property
    def condition(self) -> Q:
        """The condition that selects the jobs that the verb can change."""
        condition = Q(status__in=list(self.statuses))
        for part in consoles() if self.fits_what_holds_up else ():  # also failed jobs for which other jobs wait
            condition |= part.holding_up or Q()
        return condition

    def fits(self, job: Job) -> bool:
        """Return whether pages show the verb for this job."""
        may_hold_up_jobs = self.fits_what_holds_up and job.status == Status.FAILED
        is_offered = self.is_offered_for(job.status) or (
            may_hold_up_jobs and any(part.holds_up(job) for part in consoles() if part.holds_up)
        )
        return is_offered and (self.is_for is None or self.is_for(job))

    def is_offered_for(self, status: str) -> bool:
        return status in (self.statuses if self.offered_for is None else self.offered_for)

    def apply(self, ids: Collection[int], instruction: Instruction) -> Changed:
        """Apply the verb to the jobs that allow it. Return the changed jobs."""
        values = {option.parameter or option.name: instruction.options.get(option.name) for option in self.options}
        given_values = {name: value for name, value in values.items() if value is not None}
        changed = self.change(Store.default(), ids, **given_values, by=instruction.user, reason=instruction.reason)
        return dict(changed) if self.log_entry_of_copy and isinstance(changed, dict) else {pk: pk for pk in changed}

    def locked_among(self, ids: Collection[int]) -> set[int]:
        """Return the ids of jobs that the verb could have changed, but whose rows another session has locked."""
        leases = list(Job.objects.filter(self.condition, pk__in=ids).values_list("pk", "lease"))
        return Store.default().locked(leases) if leases else set()

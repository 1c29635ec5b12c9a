"""A verb of operators: what it changes in which jobs, its options, and its words.

Each text is a whole sentence, so that it can be translated; `Button` and `Action` say which values a text may contain.

Invariant: the statement of the verb decides whether a job changes. A status that was read before decides only which
buttons a page shows. If the job has another status by now, it stays as it is, and the message says why.
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
"""A text whose plural `count` chooses; by Django's types `%` does not take a mapping."""

Changed: TypeAlias = dict[int, int]
"""The id of each job that was changed, with the id of the job to show next: its own, or that of its copy."""


@dataclass(frozen=True)
class Instruction:
    user: str
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values of the verb's options, by their names. An option that is absent, or `None`, has its default."""


@dataclass(frozen=True, kw_only=True)
class Button:
    """A verb on the page of a job.

    Its texts may contain the `id`, the `queue`, the id of a `copy`, and the verb's options by their names.
    """

    label: Text
    hint: Text
    """The effect of the verb, in a sentence or two."""
    question_title: Text
    """The title of the question, without its question mark."""
    done: Text
    """The message after the verb."""
    asks: bool = True
    """Whether a page asks before the verb is applied."""
    is_primary: bool = False
    """Whether the button stands out."""
    hint_if_external: Text = ""
    done_if_external: Text = ""
    """The hint and the message for a job outside of the workers, if they differ."""

    def for_job(self, job: Job) -> "Button":
        if not self.hint_if_external or not holder_of(job):
            return self
        return replace(self, hint=self.hint_if_external, done=self.done_if_external)


@dataclass(frozen=True, kw_only=True)
class Action:
    """A verb for many jobs. Its texts may contain the `number` of jobs; `count` chooses the plural."""

    label: Text
    explanation: Text
    """The effect of the verb, in a few sentences."""
    question_title: PluralText
    """The title of the question, without its question mark."""
    done: PluralText
    """The message after the verb."""
    about_external: Text = ""
    """A further sentence of the explanation, for a project that also has jobs outside of the workers."""

    @property
    def full_explanation(self) -> str:
        more = [self.about_external] if settings.external_queues else []
        return " ".join(map(str, [self.explanation, *more])).strip()


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    """The word in the names of its view and its action, and in the `operations` of a row."""
    help: str
    """The help of its subcommand."""
    permission: str
    """The permission that it needs: `retry` stands for `django_skipqueue.retry_job`."""
    statuses: Collection[str]
    """The statuses in which a job can be changed."""
    fits_what_holds_up: bool = False
    """Whether the verb can also change failed jobs that hold other jobs up."""
    offered_for: Collection[str] | None = None
    """The statuses for which pages offer the verb; `None`: all `statuses`."""
    is_for: Callable[[Job], bool] | None = None
    """Says whether the page of a job offers the verb, beside the job's status; `None`: the status alone decides."""
    looked_for_in: tuple[str, ...] | None = None
    """The statuses in which a command looks for jobs if its options name none; `None`: all `statuses`; empty: the
    options must name one."""
    options: tuple[VerbOption, ...] = ()
    change: Callable[..., Iterable[int]]
    """Changes the jobs. Its arguments: a `Store`, the ids, the options, `by` and `reason`. Returns the ids of the
    changed jobs, or a dict of these ids with the ids of the copies."""
    exception: str = "that changed meanwhile"
    """The reason, on the command line, why a job stays as it is although its status allows the verb."""
    why_unchanged: Callable[[Job, Instruction], str] | None = None
    """Returns why a job stays as it is although its status allows the verb; an empty string: it has no such reason."""
    is_dangerous: bool = False
    """Whether the button that answers the question is red."""
    leaves_rows: bool = True
    """Whether the rows of the jobs remain. Then they keep the reason."""
    button: Button | None = None
    action: Action
    done: Text
    """A participle, for the history, the terminal, and Django's log."""
    leads_to: Status
    """The status of a changed job, which gives the verb its colour in the history."""
    log_entry: Text = ""
    """The entry in Django's log of a changed job, if it says more than `done`; may contain the id of the `copy`."""
    log_entry_of_copy: Text = ""
    """The entry in Django's log of the copy, if the verb makes one; may contain the `id` of the job."""

    @property
    def slug(self) -> str:
        return self.name.replace("_", "-")

    @property
    def action_name(self) -> str:
        return f"{self.name}_selected"

    @property
    def condition(self) -> Q:
        """The condition of the jobs that it can change."""
        condition = Q(status__in=list(self.statuses))
        for part in consoles() if self.fits_what_holds_up else ():
            condition |= part.holding_up or Q()
        return condition

    def fits(self, job: Job) -> bool:
        """Whether pages offer the verb for this job."""
        if self.is_for is not None and not self.is_for(job):
            return False
        is_failed = self.fits_what_holds_up and job.status == Status.FAILED
        return self.is_offered_for(job.status) or (
            is_failed and any(part.holds_up(job) for part in consoles() if part.holds_up)
        )

    def is_offered_for(self, status: str) -> bool:
        return status in (self.statuses if self.offered_for is None else self.offered_for)

    def apply(self, ids: Collection[int], instruction: Instruction) -> Changed:
        """Change the jobs with these ids that allow the verb."""
        given = {option.parameter or option.name: instruction.options.get(option.name) for option in self.options}
        values = {name: value for name, value in given.items() if value is not None}
        changed = self.change(Store.default(), ids, **values, by=instruction.user, reason=instruction.reason)
        return dict(changed) if self.log_entry_of_copy and isinstance(changed, dict) else {pk: pk for pk in changed}

    def locked_among(self, ids: Collection[int]) -> set[int]:
        """The ids of the jobs that the verb could change if no session had locked their rows."""
        leases = list(Job.objects.filter(self.condition, pk__in=ids).values_list("pk", "lease"))
        return Store.default().locked(leases) if leases else set()

"""A verb of operators, with all the texts and rules that buttons, actions, questions, history and logs need of it.

The sentences are whole, so that each can be translated; `Button` and `Action` say which values a sentence may contain.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib.admin.models import CHANGE

from ....conf import settings
from ....models import Job, Status
from ....queue.store import Store
from ...parts import holder_of
from .forms import Instruction, ReasonForm

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Text: TypeAlias = "str | _StrPromise"
PluralText: TypeAlias = Any
"""A text whose plural `count` chooses; by Django's types `%` does not take a mapping."""

Changed: TypeAlias = dict[int, int]
"""The id of each job that was changed, with the id of the job to show next: its own, or that of its copy."""


def themselves(ids: Iterable[int]) -> Changed:
    """These jobs, each with itself to show next."""
    return {pk: pk for pk in ids}


def by_store(
    method: Callable[..., Iterable[int]], **values: Callable[[Instruction], Any]
) -> Callable[[Collection[int], Instruction], Changed]:
    """Make the `change` of a verb that is a method of `Store`. `values`: how its other arguments are instructed."""

    def change(ids: Collection[int], instruction: Instruction) -> Changed:
        instructed = {name: value(instruction) for name, value in values.items()}
        return themselves(method(Store.default(), ids, **instructed, by=instruction.user, reason=instruction.reason))

    return change


@dataclass(frozen=True, kw_only=True)
class Button:
    """A verb on the page of a job.

    Its texts may contain the `id`, the `queue`, the id of a `copy`, and of the instruction the `time`, the `new_queue`
    and the `priority`.
    """

    label: Text
    hint: Text
    """Its effect, in a sentence or two."""
    question_title: Text
    """The title of the question, without its question mark."""
    done: Text
    """The message after it."""
    asks: bool = True
    """Whether it is applied only after a question is answered."""
    is_primary: bool = False
    """Whether it stands out."""
    hint_if_external: Text = ""
    done_if_external: Text = ""
    """The two texts for a job that is outside of the workers, where they differ."""

    def for_job(self, job: Job) -> "Button":
        if not self.hint_if_external or not holder_of(job):
            return self
        return replace(self, hint=self.hint_if_external, done=self.done_if_external)


@dataclass(frozen=True, kw_only=True)
class Action:
    """A verb on the list of jobs. Its texts may contain the `number` of jobs, of which `count` chooses the plural."""

    label: Text
    explanation: Text
    """Its effect, in a few sentences."""
    question_title: PluralText
    """The title of the question, without its question mark, if all chosen jobs can be changed."""
    question_title_partial: Text
    """The title if only `some` of the `number` of jobs can be changed."""
    refusal: PluralText
    """The text in place of a question, if none of the jobs can be changed."""
    done: PluralText
    """The message after it."""
    about_external: Text = ""
    """A further sentence of the explanation, for a project whose jobs run outside of the workers as well."""

    @property
    def full_explanation(self) -> str:
        more = [self.about_external] if settings.external_queues else []
        return " ".join(map(str, [self.explanation, *more])).strip()


@dataclass(frozen=True, kw_only=True)
class Past:
    done: Text
    done_by: Text
    """The same with the `user`."""
    leads_to: Status
    """The status after it, for its colour."""


@dataclass(frozen=True, kw_only=True)
class Verb:
    name: str
    """In the names of its view and its action, and in the `operations` of a row."""
    permission: str
    """On jobs: `retry` stands for `django_skipqueue.retry_job`."""
    statuses: Collection[str]
    """The statuses in which a job can be changed."""
    offered_for: Collection[str] | None = None
    """The statuses for which it is offered, if not for all: for the others another verb has the same effect."""
    also_for: Callable[[Job], bool] | None = None
    """Whether a single job can be changed although its status alone does not allow it."""
    change: Callable[[Collection[int], Instruction], Changed]
    """Apply it to the jobs with these ids whose status allows it."""
    why_unchanged: Callable[[Job, Instruction], str] | None = None
    """Why a job with a fitting status was not changed, if this verb has a reason of its own; else an empty string."""
    form: type[ReasonForm] = ReasonForm
    is_dangerous: bool = False
    """Whether the button below its question is red."""
    button: Button | None = None
    action: Action | None = None
    past: Past | None = None
    log_entry: Text
    """For a job that was changed; may contain the id of its `copy`."""
    log_entry_of_copy: Text = ""
    """For the copy; may contain the `id` of the job."""
    log_flag: int = CHANGE
    """The kind of the entry in Django's log."""

    @property
    def slug(self) -> str:
        return self.name.replace("_", "-")

    @property
    def action_name(self) -> str:
        return f"{self.name}_selected"

    def fits(self, job: Job) -> bool:
        return self.is_offered_for(job.status) or (self.also_for is not None and self.also_for(job))

    def is_offered_for(self, status: str) -> bool:
        return status in (self.statuses if self.offered_for is None else self.offered_for)

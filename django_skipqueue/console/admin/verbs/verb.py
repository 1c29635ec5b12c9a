"""A verb of operators: its texts and rules, the form that asks before it is applied, and how it is applied to one job.

The sentences are whole, so that each can be translated; `Button` and `Action` say which values a sentence may contain.
Invariant: after an invalid answer nothing is done; the form is shown again, with the error beside the field.

Invariant: the statement of the verb decides. A status that was read before says only which buttons to show; the change
of a job that no longer allows it is refused, and the message says why.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from django import forms
from django.contrib.admin.models import CHANGE
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.functional import lazy
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....conf import settings
from ....exceptions import InvalidOption
from ....models import Job, Status
from ....queue.store import Store
from ....values.bounds import NUMBER_RANGES, check_columns, check_run_after
from ...counts import grouped
from ...parts import holder_of

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


from ....values.codec import shorten
from ...durations import exact
from ...parts import why_unchanged

CONFIRMED = "confirmed"
"""The form field of an answered question."""

LONGEST_DELAY = 365 * 24 * 60
"""Minutes."""

MANY = 10_000
"""Jobs. An operator who deletes more than this types their number."""


@dataclass(frozen=True)
class Instruction:
    user: str
    reason: str = ""
    minutes: int = 0
    """To wait, or to spread the jobs over."""
    run_after: datetime | None = None
    queue_name: str = ""
    priority: int = 0

    @property
    def delay(self) -> timedelta:
        return timedelta(minutes=self.minutes)


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is kept with the job, for everybody who looks at it later."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def __init__(self, posted: Any = None, *, number: int = 0, job: Job | None = None) -> None:
        """`number`: how many jobs are to be changed, if there are more than `MANY`; `job`: the job, if it is one."""
        values = {name: getattr(job, name, None) for name in self.base_fields} if job else None
        super().__init__(posted if posted and CONFIRMED in posted else None, initial=values)
        self.order_fields([name for name in self.base_fields if name != "reason"])  # the reason comes last
        self.number = number

    def instruction(self, user: str) -> Instruction:
        names = {field.name for field in fields(Instruction)} & self.cleaned_data.keys()
        return Instruction(user, **{name: self.cleaned_data[name] for name in names if self.cleaned_data[name]})


class SpreadForm(ReasonForm):
    minutes = forms.IntegerField(
        label=_("Spread over minutes"),
        help_text=_(
            "With 0 all jobs are due at once. With a higher number each job is due at a random time within so many "
            "minutes."
        ),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
        required=False,
        widget=AdminIntegerFieldWidget,
    )


class PostponeForm(ReasonForm):
    minutes = forms.IntegerField(
        label=_("Minutes from now"), initial=60, min_value=1, max_value=LONGEST_DELAY, widget=AdminIntegerFieldWidget
    )


IN_THIS_ZONE = _("In the time zone %(zone)s. A time in the past: now.")


class RescheduleForm(ReasonForm):
    run_after = forms.DateTimeField(
        label=_("Due at"),
        help_text=lazy(lambda: IN_THIS_ZONE % {"zone": get_current_timezone_name()}, str)(),
        widget=forms.DateTimeInput(
            {"type": "datetime-local", "step": "1", "class": "vTextField"}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )

    def clean_run_after(self) -> datetime:
        run_after: datetime = self.cleaned_data["run_after"]
        try:
            check_run_after(run_after)
        except InvalidOption:
            raise forms.ValidationError(_("A job cannot be due at this time.")) from None
        return run_after


class QueueForm(ReasonForm):
    queue_name = forms.CharField(label=_("Queue"), widget=AdminTextInputWidget)

    def clean_queue_name(self) -> str:
        queue_name: str = self.cleaned_data["queue_name"]
        try:
            check_columns({"queue_name": queue_name})
        except InvalidOption:
            raise forms.ValidationError(_("No queue can have this name.")) from None
        return queue_name


class PriorityForm(ReasonForm):
    priority = forms.IntegerField(
        label=_("Priority"),
        help_text=_("From -100 to 100. Jobs with a higher priority are claimed first."),
        initial=0,
        min_value=int(NUMBER_RANGES["priority"].least),
        max_value=int(NUMBER_RANGES["priority"].most),
        widget=AdminIntegerFieldWidget,
    )


class DeleteForm(ReasonForm):
    typed = forms.CharField(label=_("Number of jobs"), max_length=30, widget=AdminTextInputWidget)

    def __init__(self, posted: Any = None, *, number: int = 0, job: Job | None = None) -> None:
        super().__init__(posted, number=number, job=job)
        self.fields["reason"].help_text = _("Optional. It is kept in the admin's log.")
        help_text = gettext("Type %(number)s to delete these jobs.") % {"number": grouped(number)}
        self.fields["typed"].help_text = help_text
        if not number:
            del self.fields["typed"]

    def clean_typed(self) -> str:
        """Accept the number that was shown, with or without separators."""
        typed: str = self.cleaned_data["typed"]
        if re.sub(r"\D", "", typed) != str(self.number):
            raise forms.ValidationError(_("This is another number."))
        return typed


Text: TypeAlias = "str | _StrPromise"
PluralText: TypeAlias = Any
"""A text whose plural `count` chooses; by Django's types `%` does not take a mapping."""

Changed: TypeAlias = dict[int, int]
"""The id of each job that was changed, with the id of the job to show next: its own, or that of its copy."""


def by_store(
    method: Callable[..., Iterable[int]], **values: Callable[[Instruction], Any]
) -> Callable[[Collection[int], Instruction], Changed]:
    """Make the `change` of a verb that is a method of `Store`. `values`: how its other arguments are instructed."""

    def change(ids: Collection[int], instruction: Instruction) -> Changed:
        instructed = {name: value(instruction) for name, value in values.items()}
        changed = method(Store.default(), ids, **instructed, by=instruction.user, reason=instruction.reason)
        return {pk: pk for pk in changed}

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


TEXT_LIMIT = 200
"""Characters of a name in a message."""


@dataclass(frozen=True)
class Result:
    message: str
    shown_id: int
    """The id of the job to show next."""
    log_entries: tuple[tuple[int, str, str], ...] = ()
    """Id and name of each job that was changed or made, and the entry for it; empty where nothing was done."""


def apply_to_one(verb: Verb, button: Button, job: Job, instruction: Instruction) -> Result:
    changed = verb.change([job.pk], instruction)
    if job.pk not in changed:
        return Result(_refusal(verb, button, job, instruction), job.pk)
    shown_id = changed[job.pk]
    values = {
        "id": job.pk,
        "copy": shown_id,
        "queue": shorten(job.queue_name, TEXT_LIMIT),
        "time": exact(instruction.run_after) if instruction.run_after else "",
        "new_queue": shorten(instruction.queue_name, TEXT_LIMIT),
        "priority": instruction.priority,
    }
    entries = [(job.pk, str(job), str(verb.log_entry) % values)]
    if shown_id != job.pk:
        entries.append((shown_id, str(Job(pk=shown_id, task=job.task)), str(verb.log_entry_of_copy) % values))
    return Result(str(button.done) % values, shown_id, tuple(entries))


def _refusal(verb: Verb, button: Button, job: Job, instruction: Instruction) -> str:
    now = Job.objects.filter(pk=job.pk).first()
    if now is None:
        return gettext("Job %(id)s was deleted meanwhile.") % {"id": job.pk}
    if now.status not in verb.statuses and not verb.fits(now):
        return does_not_fit(button, now)
    if verb.why_unchanged and (reason := verb.why_unchanged(job, instruction)):
        return reason
    if reason := why_unchanged(job.pk):
        return reason
    values = {"id": job.pk, "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is changing right now. Try again.") % values


def does_not_fit(button: Button, job: Job) -> str:
    values = {"id": job.pk, "status": job.get_status_display(), "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is %(status)s now.") % values

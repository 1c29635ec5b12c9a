"""The form that asks before a verb is applied, and how a verb is applied to one job.

Invariant: after an invalid answer nothing is done; the form is shown again, with the error beside the field.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....models import Job
from ....models.job import AbstractJob
from ....values.codec import shorten
from ...counts import grouped
from ...durations import exact
from ...parts import why_unchanged
from ...verbs.verb import Button, Instruction, Verb

CONFIRMED = "confirmed"
"""The form field of an answered question."""

MOST_UNTYPED = 10_000
"""Jobs. An operator who deletes more than this types their number."""

TEXT_FIELD_ATTRIBUTES = {"class": "vTextField"}
"""The attributes of the admin's own field for a text."""


class VerbForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is kept with the job, for everybody who looks at it later."),
        max_length=200,
        required=False,
        widget=forms.TextInput(TEXT_FIELD_ATTRIBUTES),
    )

    def __init__(
        self, verb: Verb, posted: Any = None, *, number: int = 0, job: Job | None = None, given: Any = None
    ) -> None:
        """`number`: the number of jobs to change, if it is above `MOST_UNTYPED`. `job`: the only job to change.

        `given`: values to show first, by the names of the options; a link may have them in its address.
        """
        names = [option.name for option in verb.options]
        values = {name: getattr(job, name) for name in names if hasattr(job, name)}
        values |= {name: given[name] for name in names if given and name in given}
        super().__init__(posted if posted and CONFIRMED in posted else None, initial=values)
        self.number, self._names = number, names
        for option in verb.options:
            self.fields[option.name] = option.field()
        if not verb.leaves_rows:
            self.fields["reason"].help_text = _("Optional. It is kept in the admin's log.")
            if number:
                help_text = gettext("Type %(number)s to delete these jobs.") % {"number": grouped(number)}
                self.fields["typed"] = forms.CharField(
                    label=_("Number of jobs"),
                    max_length=30,
                    help_text=help_text,
                    widget=forms.TextInput(TEXT_FIELD_ATTRIBUTES),
                )
        self.order_fields([name for name in self.fields if name != "reason"])  # the reason comes last

    def clean_typed(self) -> str:
        """Accept the number that was shown, with or without separators."""
        typed: str = self.cleaned_data["typed"]
        if re.sub(r"\D", "", typed) != str(self.number):
            raise forms.ValidationError(_("The number does not match."))
        return typed

    def instruction(self, user: str) -> Instruction:
        return Instruction(user, self.cleaned_data["reason"], {name: self.cleaned_data[name] for name in self._names})

    def answers(self) -> dict[str, str]:
        """The form's answers as strings, so that another process can submit the form again.

        Datetimes are in ISO format with their offset.
        """
        times = {name: each for name, each in self.cleaned_data.items() if isinstance(each, datetime)}
        return {
            name: times[name].isoformat() if name in times else self.data.get(name, "")
            for name in ("reason", *self._names)
        }


@dataclass(frozen=True)
class LoggedChange:
    job_id: int
    name: str
    message: str


def log_entries(verb: Verb, job: AbstractJob, shown_id: int) -> list[LoggedChange]:
    """The entries for a job that was changed, and for its copy if the verb makes one."""
    values = {"id": job.pk, "copy": shown_id}
    entries = [LoggedChange(job.pk, str(job), str(verb.log_entry) % values or f"{capfirst(str(verb.done))}.")]
    if shown_id != job.pk:
        entries.append(
            LoggedChange(shown_id, str(Job(pk=shown_id, task=job.task)), str(verb.log_entry_of_copy) % values)
        )
    return entries


MESSAGE_NAME_LIMIT = 200
"""Characters of a name in a message."""


@dataclass(frozen=True)
class Result:
    message: str
    shown_id: int
    """The id of the job to show next."""
    log_entries: tuple[LoggedChange, ...] = ()
    """Empty where nothing was done."""


def apply_to_one(verb: Verb, button: Button, job: Job, instruction: Instruction) -> Result:
    changed = verb.apply([job.pk], instruction)
    if job.pk not in changed:
        return Result(_refusal(verb, button, job, instruction), job.pk)
    shown_id = changed[job.pk]
    values = {name: _shown(value) for name, value in instruction.options.items()}
    values |= {"id": job.pk, "copy": shown_id, "queue": shorten(job.queue_name, MESSAGE_NAME_LIMIT)}
    return Result(str(button.done) % values, shown_id, tuple(log_entries(verb, job, shown_id)))


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return exact(value)
    return shorten(value, MESSAGE_NAME_LIMIT) if isinstance(value, str) else value


def _refusal(verb: Verb, button: Button, job: Job, instruction: Instruction) -> str:
    now = Job.objects.filter(pk=job.pk).first()
    if now is None:
        return gettext("Job %(id)s was deleted meanwhile.") % {"id": job.pk}
    if now.status not in verb.statuses and not verb.fits(now):
        return misfit_message(button, now)
    if verb.why_unchanged and (reason := verb.why_unchanged(job, instruction)):
        return reason
    values = {"id": job.pk, "verb": button.label}
    if verb.locked_among([job.pk]):
        return gettext("“%(verb)s” did nothing: a database session has locked the row of job %(id)s.") % values
    if reason := why_unchanged(job.pk):
        return reason
    return gettext("“%(verb)s” did nothing: job %(id)s is changing right now. Try again.") % values


def misfit_message(button: Button, job: Job) -> str:
    values = {"id": job.pk, "status": job.get_status_display(), "verb": button.label}
    return gettext("“%(verb)s” did nothing: job %(id)s is %(status)s now.") % values

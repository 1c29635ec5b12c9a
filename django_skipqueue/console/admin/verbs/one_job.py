"""The confirmation form of a verb, and the code that applies a verb to one job.

If an answer is invalid, nothing is changed. The form is shown again, with the error next to the field.
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
"""The form field that is posted when the user has confirmed."""

MOST_UNTYPED = 10_000
"""To delete more jobs than this, the operator has to type their number."""

TEXT_FIELD_ATTRIBUTES = {"class": "vTextField"}
"""The attributes of the admin's own text fields."""


class VerbForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is stored with the job, for everyone who views the job later."),
        max_length=200,
        required=False,
        widget=forms.TextInput(TEXT_FIELD_ATTRIBUTES),
    )

    def __init__(
        self, verb: Verb, posted: Any = None, *, number: int = 0, job: Job | None = None, initial_values: Any = None
    ) -> None:
        """`number`: the number of jobs to change, if it is above `MOST_UNTYPED`. `job`: the only job to change.

        `initial_values`: values to show first, by the names of the options; a link may have them in its address.
        """
        names = [option.name for option in verb.options]
        values = {name: getattr(job, name) for name in names if hasattr(job, name)}
        values |= {name: initial_values[name] for name in names if initial_values and name in initial_values}
        super().__init__(posted if posted and CONFIRMED in posted else None, initial=values)
        self.number, self._names = number, names
        for option in verb.options:
            self.fields[option.name] = option.field()
        if not verb.leaves_rows:
            self.fields["reason"].help_text = _("Optional. It is stored in the admin's log.")
            if number:
                help_text = gettext("Type %(number)s to delete these jobs.") % {"number": grouped(number)}
                self.fields["typed"] = forms.CharField(
                    label=_("Number of jobs"),
                    max_length=30,
                    help_text=help_text,
                    widget=forms.TextInput(TEXT_FIELD_ATTRIBUTES),
                )
        self.order_fields([name for name in self.fields if name != "reason"])  # show the reason last

    def clean_typed(self) -> str:
        """Accept the shown number, with or without separators."""
        typed: str = self.cleaned_data["typed"]
        if re.sub(r"\D", "", typed) != str(self.number):
            raise forms.ValidationError(_("The number does not match."))
        return typed

    def instruction(self, user: str) -> Instruction:
        return Instruction(user, self.cleaned_data["reason"], {name: self.cleaned_data[name] for name in self._names})

    def answers(self) -> dict[str, str]:
        """Return the form's values as strings, so that another process can submit the form again.

        Datetimes are in ISO format with their offset.
        """
        times = {name: value for name, value in self.cleaned_data.items() if isinstance(value, datetime)}
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
    """Return the log entries for a changed job, and for its copy if the verb makes one."""
    values = {"id": job.pk, "copy": shown_id}
    entries = [LoggedChange(job.pk, str(job), str(verb.log_entry) % values or f"{capfirst(str(verb.done))}.")]
    if shown_id != job.pk:
        entries.append(
            LoggedChange(shown_id, str(Job(pk=shown_id, task=job.task)), str(verb.log_entry_of_copy) % values)
        )
    return entries


MESSAGE_NAME_LIMIT = 200
"""Names in messages are shortened to this many characters."""


@dataclass(frozen=True)
class Result:
    message: str
    shown_id: int
    """The id of the job to show next."""
    log_entries: tuple[LoggedChange, ...] = ()
    """The entries for Django's log; empty if nothing was changed."""


def apply_to_one(verb: Verb, button: Button, job: Job, instruction: Instruction) -> Result:
    changed = verb.apply([job.pk], instruction)
    if job.pk not in changed:
        return Result(_refusal(verb, button, job, instruction), job.pk)
    shown_id = changed[job.pk]
    values = {name: _value_in_words(value) for name, value in instruction.options.items()}
    values |= {"id": job.pk, "copy": shown_id, "queue": shorten(job.queue_name, MESSAGE_NAME_LIMIT)}
    return Result(str(button.done) % values, shown_id, tuple(log_entries(verb, job, shown_id)))


def _value_in_words(value: Any) -> Any:
    if isinstance(value, datetime):
        return exact(value)
    return shorten(value, MESSAGE_NAME_LIMIT) if isinstance(value, str) else value


def _refusal(verb: Verb, button: Button, job: Job, instruction: Instruction) -> str:
    current = Job.objects.filter(pk=job.pk).first()
    if current is None:
        return gettext("Job %(id)s has been deleted in the meantime.") % {"id": job.pk}
    if current.status not in verb.statuses and not verb.fits(current):
        return misfit_message(button, current)
    if verb.why_unchanged and (reason := verb.why_unchanged(job, instruction)):
        return reason
    values = {"id": job.pk, "verb": button.label}
    if verb.locked_among([job.pk]):
        return gettext("“%(verb)s” did nothing, because a database session has locked the row of job %(id)s.") % values
    if reason := why_unchanged(job.pk):
        return reason
    return gettext("“%(verb)s” did nothing, because job %(id)s is changing right now. Try again.") % values


def misfit_message(button: Button, job: Job) -> str:
    values = {"id": job.pk, "status": job.get_status_display(), "verb": button.label}
    return gettext("“%(verb)s” did nothing, because job %(id)s is now %(status)s.") % values

"""The forms that ask an operator before a verb is applied to jobs, and the instruction that an answered form makes.

Invariant: after an invalid answer nothing is done; the form is shown again, with the error beside the field.
"""

import re
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ....exceptions import InvalidOption
from ....models import Job
from ....values.bounds import LIMITS
from ....values.columns import check_columns, check_run_after
from ...counts import grouped

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
    field_order = ("minutes", "reason")


class PostponeForm(ReasonForm):
    minutes = forms.IntegerField(
        label=_("Minutes from now"), initial=60, min_value=1, max_value=LONGEST_DELAY, widget=AdminIntegerFieldWidget
    )
    field_order = ("minutes", "reason")


class RescheduleForm(ReasonForm):
    run_after = forms.DateTimeField(
        label=_("Due at"),
        widget=forms.DateTimeInput(
            {"type": "datetime-local", "step": "1", "class": "vTextField"}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )
    field_order = ("run_after", "reason")

    def __init__(self, posted: Any = None, *, number: int = 0, job: Job | None = None) -> None:
        super().__init__(posted, number=number, job=job)
        self.fields["run_after"].help_text = gettext("In the time zone %(zone)s. A time in the past: now.") % {
            "zone": get_current_timezone_name()
        }

    def clean_run_after(self) -> datetime:
        run_after: datetime = self.cleaned_data["run_after"]
        try:
            check_run_after(run_after)
        except InvalidOption:
            raise forms.ValidationError(_("A job cannot be due at this time.")) from None
        return run_after


class QueueForm(ReasonForm):
    queue_name = forms.CharField(label=_("Queue"), widget=AdminTextInputWidget)
    field_order = ("queue_name", "reason")

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
        min_value=int(LIMITS["priority"].least),
        max_value=int(LIMITS["priority"].most),
        widget=AdminIntegerFieldWidget,
    )
    field_order = ("priority", "reason")


class DeleteForm(ReasonForm):
    typed = forms.CharField(label=_("Number of jobs"), max_length=30, widget=AdminTextInputWidget)
    field_order = ("typed", "reason")

    def __init__(self, posted: Any = None, *, number: int = 0, job: Job | None = None) -> None:
        super().__init__(posted, number=number, job=job)
        self.fields["reason"].help_text = _("Optional. It is kept in the admin's log.")
        if number:
            self.fields["typed"].help_text = gettext("Type %(number)s to delete these jobs.") % {
                "number": grouped(number)
            }
        else:
            del self.fields["typed"]

    def clean_typed(self) -> str:
        """Accept the number that was shown, with or without separators."""
        typed: str = self.cleaned_data["typed"]
        if re.sub(r"\D", "", typed) != str(self.number):
            raise forms.ValidationError(_("This is another number."))
        return typed

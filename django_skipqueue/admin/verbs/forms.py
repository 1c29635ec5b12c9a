"""The forms that ask an operator before a verb is applied to jobs, and the instruction that an answered form makes.

Invariant: after an invalid answer nothing is done; the form is shown again, with the error beside the field.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..ui.counts import grouped

CONFIRMED = "confirmed"
"""The form field of an answered question."""

LONGEST_DELAY = 365 * 24 * 60
"""Minutes."""

MANY = 10_000
"""Jobs. An operator who deletes more than this types their number."""


@dataclass(frozen=True)
class Instruction:
    """Who applies a verb, and the answers to its questions."""

    user: str
    reason: str = ""
    minutes: int = 0
    """To wait, or to spread the jobs over."""

    @property
    def delay(self) -> timedelta:
        """The minutes as a span of time."""
        return timedelta(minutes=self.minutes)


class ReasonForm(forms.Form):
    """Asks for a reason."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is kept with the job, for everybody who looks at it later."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def __init__(self, posted: Any = None, *, number: int = 0) -> None:
        """`number`: how many jobs are to be changed, if there are more than `MANY`."""
        super().__init__(posted if posted and CONFIRMED in posted else None)
        self.number = number

    def instruction(self, user: str) -> Instruction:
        """The instruction of this user, once the form is valid."""
        return Instruction(user, self.cleaned_data["reason"], self.cleaned_data.get("minutes") or 0)


class SpreadForm(ReasonForm):
    """Also asks for the time over which the jobs are spread."""

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
    """Also asks for the time until the jobs are due."""

    minutes = forms.IntegerField(
        label=_("Minutes from now"), initial=60, min_value=1, max_value=LONGEST_DELAY, widget=AdminIntegerFieldWidget
    )
    field_order = ("minutes", "reason")


class DeleteForm(ReasonForm):
    """Asks the operator to type the number of jobs, if it is large."""

    typed = forms.CharField(label=_("Number of jobs"), max_length=30, widget=AdminTextInputWidget)
    field_order = ("typed", "reason")

    def __init__(self, posted: Any = None, *, number: int = 0) -> None:
        super().__init__(posted, number=number)
        self.fields["reason"].help_text = _("Optional. It is kept in the admin's log.")
        if number:
            self.fields["typed"].help_text = gettext("Type %(number)s to delete so many jobs.") % {
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

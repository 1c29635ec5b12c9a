"""What an operator is asked before something is done to jobs, and what was answered.

Invariant: an answer that cannot be used is asked for again, beside its field, and nothing is done.
"""

import re
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..ui.counts import grouped

CONFIRMED = "confirmed"
"""The form field that says that the operator has seen the question."""

LONGEST_DELAY = 365 * 24 * 60
"""Minutes."""

MANY = 10_000
"""Jobs. Whoever deletes more than this types their number."""


@dataclass(frozen=True)
class Instruction:
    """What an operator wants, beside the verb."""

    user: str
    reason: str = ""
    minutes: int = 0
    """To wait, or to spread the jobs over."""


class Question(forms.Form):
    """Asks for a reason."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It stays with the job, for whoever looks at it later."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def __init__(self, posted: Any = None, *, number: int = 0) -> None:
        """`number`: how many jobs it is about, where that is more than `MANY`."""
        super().__init__(posted if posted and CONFIRMED in posted else None)
        self.number = number

    def instruction(self, user: str) -> Instruction:
        """What was answered, once it is valid."""
        return Instruction(user, self.cleaned_data["reason"], self.cleaned_data.get("minutes") or 0)


class SpreadQuestion(Question):
    """Asks over how long jobs are spread, too."""

    minutes = forms.IntegerField(
        label=_("Spread over minutes"),
        help_text=_("With 0 all are due at once. Otherwise each is due at a random time within so many minutes."),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
        required=False,
        widget=AdminIntegerFieldWidget,
    )
    field_order = ("minutes", "reason")


class PostponeQuestion(Question):
    """Asks for how long jobs shall wait, too."""

    minutes = forms.IntegerField(
        label=_("Minutes from now"), initial=60, min_value=1, max_value=LONGEST_DELAY, widget=AdminIntegerFieldWidget
    )
    field_order = ("minutes", "reason")


class DeleteQuestion(Question):
    """Has the number typed, where it is large."""

    typed = forms.CharField(label=_("Number of jobs"), max_length=30, widget=AdminTextInputWidget)
    field_order = ("typed", "reason")

    def __init__(self, posted: Any = None, *, number: int = 0) -> None:
        super().__init__(posted, number=number)
        self.fields["reason"].help_text = _("Optional. It stands in the admin's log.")
        if number:
            shown = grouped(number)
            self.fields["typed"].help_text = gettext("Type %(number)s to delete so many.") % {"number": shown}
        else:
            del self.fields["typed"]

    def clean_typed(self) -> str:
        """The number that was shown, however it is grouped."""
        typed: str = self.cleaned_data["typed"]
        if re.sub(r"\D", "", typed) != str(self.number):
            raise forms.ValidationError(_("This is another number."))
        return typed

"""What an operator is asked before something is done to jobs, and what was answered.

Invariant: an answer that cannot be used is asked for again, beside its field, and nothing is done.
"""

from dataclasses import dataclass

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

CONFIRMED = "confirmed"
"""The field that says that the question was asked."""


@dataclass(frozen=True)
class Instruction:
    """What an operator wants to be done, beside the verb."""

    user: str
    reason: str = ""
    minutes: int = 0
    """To wait, or to spread the jobs over."""

    def told(self, done: str) -> str:
        """What was done, by whom and why, for the job to keep."""
        return f"{done} by {self.user}{': ' if self.reason else '.'}{self.reason}"


class Question(forms.Form):
    """Asks for a reason."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It stays with the jobs, for whoever looks at them later."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def instruction(self, user: str) -> Instruction:
        """What was answered, once it is valid."""
        return Instruction(user, self.cleaned_data["reason"], self.cleaned_data.get("minutes") or 0)


def asked(question: type[Question], request: HttpRequest) -> Question:
    """The question with what was answered to it; without answers where it has not been asked yet."""
    return question(request.POST if CONFIRMED in request.POST else None)

"""The form that asks for how long a queue is to be paused, and why."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.translation import gettext_lazy as _

OWN = "own"

LONGEST_PAUSE = 365 * 24 * 60
"""Minutes."""


class PauseForm(forms.Form):
    lasts = forms.ChoiceField(
        label=_("How long"),
        choices=(
            ("", _("until somebody resumes it")),
            ("15", _("15 minutes")),
            ("60", _("1 hour")),
            ("240", _("4 hours")),
            (OWN, _("so many minutes:")),
        ),
        required=False,
    )
    minutes = forms.IntegerField(
        label=_("Minutes"),
        help_text=_("Only for a time that is not in the list."),
        min_value=1,
        max_value=LONGEST_PAUSE,
        required=False,
        widget=AdminIntegerFieldWidget,
    )
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is shown to everybody who looks at the queue or its jobs."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("lasts") == OWN and not cleaned.get("minutes") and "minutes" not in self.errors:
            self.add_error("minutes", _("For how many minutes?"))
        return cleaned

    @property
    def duration(self) -> timedelta | None:
        """The chosen time; `None`: until somebody resumes the queue. Once the form is valid."""
        lasts = self.cleaned_data["lasts"]
        minutes = int(lasts) if lasts.isdecimal() else self.cleaned_data["minutes"]
        return timedelta(minutes=minutes) if minutes else None

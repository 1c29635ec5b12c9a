"""The form that asks how many jobs of a queue may start in a time."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...exceptions import InvalidOption
from ...values.rates import MOST, interval_of, rate_text
from .states import StartRate

SETTINGS, NONE, OWN = "settings", "none", "own"


class RateForm(forms.Form):
    rate = forms.ChoiceField(label=_("Rate"))
    own = forms.CharField(
        label=_("Jobs in a time"),
        help_text=_("Only for a rate that is not in the list: 50/s, 100/m, 10/h, 1/d or 3/10s."),
        max_length=20,
        required=False,
        widget=AdminTextInputWidget,
    )

    def __init__(self, data: Any, rate: StartRate) -> None:
        chosen = SETTINGS if not rate.is_changed else OWN if rate.text else NONE
        own = rate.text if chosen == OWN else None
        super().__init__(data, initial={"rate": chosen, "own": own})
        by_settings = gettext("as in the settings: %(rate)s") % {"rate": shown(rate.by_settings)}
        choices = ((SETTINGS, by_settings), (NONE, _("any number of jobs")), (OWN, _("this one:")))
        self.fields["rate"] = forms.ChoiceField(label=_("Rate"), choices=choices)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("rate") == OWN and "own" not in self.errors:
            try:
                interval_of(cleaned.get("own", ""))
            except InvalidOption:
                wrong = _("A number of jobs and a time, such as 50/s, 100/m or 3/10s; at most %(most)s in a second.")
                self.add_error("own", wrong % {"most": f"{MOST:,}"})
        return cleaned

    @property
    def is_by_settings(self) -> bool:
        """Whether the rate of the settings is to hold. Once the form is valid."""
        return bool(self.cleaned_data["rate"] == SETTINGS)

    @property
    def chosen(self) -> str | None:
        """The chosen rate; `None`: any number of jobs. Once the form is valid."""
        return self.cleaned_data["own"] if self.cleaned_data["rate"] == OWN else None


def shown(interval: float | None) -> str:
    return gettext("any number of jobs") if interval is None else rate_text(interval)

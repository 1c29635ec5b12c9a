"""The form that asks how many jobs of a queue may start in a time."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.utils.translation import gettext_lazy as _

from ...console.admin.queues.setting_form import SettingForm
from ...exceptions import InvalidOption
from ...values.rates import MOST, interval_of, rate_text


class RateForm(SettingForm):
    choice, typed = "rate", "own"
    any_number, this_value = _("any number of jobs"), _("this one:")

    rate = forms.ChoiceField(label=_("Rate"))
    own = forms.CharField(
        label=_("Jobs in a time"),
        help_text=_("Only for a rate that is not in the list: 50/s, 100/m, 10/h, 1/d or 3/10s."),
        max_length=20,
        required=False,
        widget=AdminTextInputWidget,
    )

    @classmethod
    def as_typed(cls, value: float | str) -> str:
        return value if isinstance(value, str) else rate_text(value)

    def problem(self, typed: str) -> Any:
        try:
            interval_of(typed)
        except InvalidOption:
            wrong = _("A number of jobs and a time, such as 50/s, 100/m or 3/10s; at most %(most)s in a second.")
            return wrong % {"most": f"{MOST:,}"}
        return ""

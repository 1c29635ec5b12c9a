"""The form that asks how many jobs of a queue may run at once."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget
from django.utils.translation import gettext_lazy as _

from ...console.admin.queues.setting_form import SettingForm
from ...console.counts import grouped
from ...values.queue_settings import LARGEST_LIMIT


class LimitForm(SettingForm):
    choice, typed = "limit", "number"
    any_number, this_value = _("any number"), _("so many:")

    limit = forms.ChoiceField(label=_("Jobs at once"))
    number = forms.IntegerField(
        label=_("Number"),
        help_text=_("Only for a number that is not in the list."),
        min_value=1,
        max_value=LARGEST_LIMIT,
        required=False,
        widget=AdminIntegerFieldWidget,
    )

    @classmethod
    def in_words(cls, value: int | None) -> str:
        return super().in_words(None if value is None else grouped(value))

    def problem(self, typed: int | None) -> Any:
        return "" if typed else _("How many?")

"""The form that asks how many jobs of a queue may run at once."""

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.counts import grouped
from ...values.queue_settings import LARGEST_LIMIT
from .states import QueueLimit

SETTINGS, NONE, OWN = "settings", "none", "own"


class LimitForm(forms.Form):
    limit = forms.ChoiceField(label=_("Jobs at once"))
    number = forms.IntegerField(
        label=_("Number"),
        help_text=_("Only for a number that is not in the list."),
        min_value=1,
        max_value=LARGEST_LIMIT,
        required=False,
        widget=AdminIntegerFieldWidget,
    )

    def __init__(self, data: Any, limit: QueueLimit) -> None:
        chosen = SETTINGS if not limit.is_changed else OWN if limit.number else NONE
        number = limit.number if chosen == OWN else None
        super().__init__(data, initial={"limit": chosen, "number": number})
        by_settings = gettext("as in the settings: %(number)s") % {"number": shown(limit.by_settings)}
        choices = ((SETTINGS, by_settings), (NONE, _("any number")), (OWN, _("so many:")))
        self.fields["limit"] = forms.ChoiceField(label=_("Jobs at once"), choices=choices)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("limit") == OWN and not cleaned.get("number") and "number" not in self.errors:
            self.add_error("number", _("How many?"))
        return cleaned

    @property
    def is_by_settings(self) -> bool:
        """Whether the number of the settings is to hold. Once the form is valid."""
        return bool(self.cleaned_data["limit"] == SETTINGS)

    @property
    def chosen(self) -> int | None:
        """The chosen number; `None`: any. Once the form is valid."""
        return self.cleaned_data["number"] if self.cleaned_data["limit"] == OWN else None


def shown(number: int | None) -> str:
    return gettext("any number") if number is None else grouped(number)

"""The forms that pause a queue, or change its limit or rate.

The operator chooses the limit or rate from the project's settings, types another one, or chooses none.
"""

from datetime import timedelta
from typing import Any, ClassVar, cast

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..parts import QueueSetting

SETTINGS, NONE, OWN = "settings", "none", "own"
"""The choices: the value from the settings, no value, and a value that the operator types."""

LONGEST_PAUSE_MINUTES = 365 * 24 * 60
"""The longest pause, in minutes."""


class PauseForm(forms.Form):
    lasts = forms.ChoiceField(
        label=_("How long"),
        choices=(
            ("", _("until someone resumes it")),
            ("15", _("15 minutes")),
            ("60", _("1 hour")),
            ("240", _("4 hours")),
            (OWN, _("for the number of minutes below")),
        ),
        required=False,
    )
    minutes = forms.IntegerField(
        label=_("Minutes"),
        help_text=_("Only if the duration is not in the list above."),
        min_value=1,
        max_value=LONGEST_PAUSE_MINUTES,
        required=False,
        widget=AdminIntegerFieldWidget,
    )
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional. It is shown to everyone who views the queue or its jobs."),
        max_length=200,
        required=False,
        widget=AdminTextInputWidget,
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("lasts") == OWN and not cleaned.get("minutes") and "minutes" not in self.errors:
            self.add_error("minutes", _("Enter the number of minutes."))
        return cleaned

    @property
    def duration(self) -> timedelta | None:
        """The chosen duration of a valid form; `None` if the pause lasts until someone resumes the queue."""
        lasts = self.cleaned_data["lasts"]
        minutes = int(lasts) if lasts.isdecimal() else self.cleaned_data["minutes"]
        return timedelta(minutes=minutes) if minutes else None


class SettingForm(forms.Form):
    choice: ClassVar[str]
    """The name of the field to choose between the settings' value, no value, and a typed value."""
    typed: ClassVar[str]
    """The name of the field for the typed value."""
    any_number: ClassVar[Any]
    """The label of the choice `NONE`."""
    this_value: ClassVar[Any]
    """The label of the choice `OWN`."""

    def __init__(self, data: Any, setting: QueueSetting[Any]) -> None:
        chosen = SETTINGS if not setting.is_changed else (OWN if setting.value else NONE)  # `None` means unlimited
        typed_value = self.as_typed(setting.value) if chosen == OWN else None
        super().__init__(data, initial={self.choice: chosen, self.typed: typed_value})
        label_of_settings = gettext("as in the settings: %(value)s") % {"value": self.in_words(setting.by_settings)}
        choices = ((SETTINGS, label_of_settings), (NONE, self.any_number), (OWN, self.this_value))
        cast(forms.ChoiceField, self.fields[self.choice]).choices = choices

    @classmethod
    def as_typed(cls, value: Any) -> Any:
        """Convert a stored value to the value that operators type."""
        return value

    @classmethod
    def in_words(cls, value: Any) -> str:
        """Return the value as text. `None` means unlimited."""
        return str(cls.any_number if value is None else cls.as_typed(value))

    def problem(self, typed: Any) -> Any:
        """Return why the typed value is not valid; empty if it is."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        is_own = cleaned.get(self.choice) == OWN and self.typed not in self.errors
        if is_own and (problem := self.problem(cleaned.get(self.typed))):
            self.add_error(self.typed, problem)
        return cleaned

    @property
    def chosen(self) -> Any:
        """The typed value of a valid form; `None` means unlimited."""
        return self.cleaned_data[self.typed] if self.cleaned_data[self.choice] == OWN else None

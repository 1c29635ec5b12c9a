"""The form of a schedule of the admin.

Invariant: what it accepts can be fired: it is checked by the code of `@periodic`. A secret is never sent to the
browser: a mask that is left as it is stands for the schedule's own value.
"""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.utils.translation import gettext_lazy as _

from ...conf import settings as queue_settings
from ...exceptions import InvalidOption, SkipQueueError
from ...models import Schedule
from ...models.schedule import CatchUp, Overlap
from ...operators.arguments import redacted
from ...periodic.entry import Entry, jitter_seconds
from ...periodic.timetable import timetable, zone_names
from ...setting_forms.databases import SPREAD
from ...tasks.registry import registry
from ...values.redaction import UnknownMask, restored

DEFINITION = ("name", "task", "args", "kwargs", "cron", "interval", "timezone", "catch_up", "overlap", "jitter")

TIMES = {"cron", "interval", "timezone"}


def _tasks() -> list[tuple[str, str]]:
    return [("", "---------"), *sorted((task.name, task.name) for task in registry if not task.is_internal)]


def _zones() -> list[tuple[str, str]]:
    return [(name, name) for name in zone_names()]


class ScheduleForm(forms.ModelForm):
    task = forms.ChoiceField(label=_("Task"), choices=_tasks)
    args = forms.JSONField(
        label=_("Positional arguments"),
        required=False,
        initial=list,
        help_text=_("A list, as JSON."),
        widget=AdminTextareaWidget({"rows": 2}),
    )
    kwargs = forms.JSONField(
        label=_("Keyword arguments"),
        required=False,
        initial=dict,
        help_text=_("An object, as JSON."),
        widget=AdminTextareaWidget({"rows": 2}),
    )
    cron = forms.CharField(
        label=_("Cron expression"),
        required=False,
        help_text=_("Minute, hour, day of the month, month, day of the week: 0 9 * * mon-fri. Or give an interval."),
    )
    timezone = forms.ChoiceField(label=_("Time zone"), choices=_zones, help_text=_("Of the cron expression."))

    class Meta:
        model = Schedule
        fields = DEFINITION
        widgets = {"name": AdminTextInputWidget}
        help_texts = {"interval": _("Hours, minutes and seconds: 00:05:00 is every five minutes.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        row = self.instance
        self._saved = {"task": row.task, "args": row.args, "kwargs": row.kwargs} if row.pk else {}
        if self._saved:
            self._shown = redacted(row.task, row.args, row.kwargs)
            self.initial.update(args=self._shown.args, kwargs=self._shown.kwargs)
        if "interval" in self.fields:  # not of somebody who may only look
            self.fields["timezone"].initial = settings.TIME_ZONE
            self.fields["catch_up"].initial, self.fields["overlap"].initial = CatchUp.LATEST, Overlap.ALLOW
            self.fields["interval"].required = self.fields["jitter"].required = False
            task = self.initial.get("task")
            if task and task not in dict(_tasks()):  # this process does not know it: it stays as it is
                self.fields["task"].choices = [*_tasks(), (task, task)]  # type: ignore[attr-defined]

    def clean_args(self) -> Any:
        """An empty field is an empty list."""
        return [] if self.cleaned_data["args"] is None else self._restored("args")

    def clean_kwargs(self) -> Any:
        """An empty field is an empty object."""
        return {} if self.cleaned_data["kwargs"] is None else self._restored("kwargs")

    def clean_cron(self) -> str:
        """One space between the fields."""
        return " ".join(self.cleaned_data["cron"].split())

    def clean_jitter(self) -> float:
        """Seconds; an empty field is none."""
        try:
            return jitter_seconds(self.cleaned_data["jitter"])
        except InvalidOption as error:
            raise forms.ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        """Check the times, then the call, as `@periodic` does."""
        cleaned: dict[str, Any] = super().clean() or {}
        if self.errors:
            return cleaned
        try:
            timetable(cron=cleaned["cron"], interval=cleaned["interval"], zone=cleaned["timezone"])
        except SkipQueueError as error:
            self.add_error("interval" if cleaned["interval"] and not cleaned["cron"] else "cron", str(error))
            return cleaned
        try:
            entry = Entry(source="admin", **{name: cleaned[name] for name in DEFINITION})
            entry.check()
            belongs_to = entry.database if queue_settings.placement == SPREAD else queue_settings.database
        except SkipQueueError as error:
            text = self._shown.text(str(error)) if self._saved else str(error)  # the error may quote an argument
            self.add_error("name" if text.startswith("name") else "kwargs", text)
            return cleaned
        if belongs_to != queue_settings.database:
            refusal = _("The key of these jobs belongs to the database %(alias)s. Add the schedule there.")
            self.add_error("kwargs", refusal % {"alias": belongs_to})
        return cleaned

    def _restored(self, name: str) -> Any:
        """The value of the field with its secrets put back: not for another task, which might show them."""
        given = self.cleaned_data[name]
        is_same = bool(self._saved) and self.cleaned_data.get("task") == self._saved["task"]
        shown, saved = (getattr(self._shown, name), self._saved[name]) if is_same else (None, None)
        try:
            return restored(given, shown, saved)
        except UnknownMask:
            raise forms.ValidationError(_("This mask stands for no value of the schedule. Type the value.")) from None

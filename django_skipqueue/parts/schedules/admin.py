"""The admin pages of schedules: the list, the page and form of one schedule, and buttons to pause, resume and run it.

Every view checks the user's permission itself, changes nothing on a GET, and logs its changes.

The form uses the same checks as `@periodic`, so supervisors can run every schedule that it accepts. The browser never
gets a secret: if the user leaves a masked value unchanged, the schedule keeps the secret.

The columns of the list are the facts of `SCHEDULE`.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import settings as queue_settings
from ...console.admin.ui.addresses import address_of
from ...console.admin.ui.cells import Cell, arguments, badge, columns_of, rows, shortened, task_link
from ...console.admin.ui.views import READ, OwnViews, guarded, refreshing
from ...console.arguments import redacted
from ...console.durations import distance, exact
from ...console.facts import NOTHING, Renderers
from ...console.job_states import STATES as JOB_STATES
from ...console.search import is_id
from ...exceptions import InvalidOption, SkipQueueError
from ...jobs.registry import registry
from ...models import Schedule
from ...models.job import AbstractJob
from ...queue.store import Store
from ...values.redaction import UnknownMask, restored
from . import operate
from .console import (
    FIRING_STATES,
    MOST_SCHEDULES_SHOWN,
    SCHEDULE,
    SCHEDULE_STATES,
    SCHEDULE_VERBS,
    ScheduleState,
    first_schedules,
    name_of_schedule,
    schedule_states,
)
from .entry import ScheduleEntry, jitter_seconds
from .models import CatchUp, Overlap
from .timetable import timetable

STATE_BADGES = {
    "active": "completed",
    "paused": "paused",
    "late": "failed",
    "failing": "failed",
    "error": "failed",
    "retired": "discarded",
}
"""A schedule's badge has the colour of this job status."""

CELL_WITH_DETAIL = '{} <span class="skipqueue-detail">{}</span>'


def in_zone(time: datetime) -> str:
    """Format a time in its own time zone, such as `2026-03-01 09:00 CET`."""
    return date_format(time, "Y-m-d H:i:s T" if time.second else "Y-m-d H:i T")


def state_badge(schedule: ScheduleState) -> SafeString:
    return badge(STATE_BADGES[schedule.state], SCHEDULE_STATES[schedule.state])


def last_run(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if row.last_run_at is None:
        return NOTHING
    ago = distance(row.last_run_at, schedule.now)
    if schedule.last_run is None:
        return ago
    address = address_of("job_change", row.last_job_id)
    mark = badge(schedule.last_run.state, JOB_STATES[schedule.last_run.state])
    return format_html('{} <a href="{}">#{}</a> {}', ago, address, row.last_job_id, mark)


def next_run(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if schedule.next_run is None or row.next_run_at is None:
        return NOTHING
    return format_html(CELL_WITH_DETAIL, distance(row.next_run_at, schedule.now), in_zone(schedule.next_run))


def next_runs(schedule: ScheduleState) -> Cell:
    if not schedule.next_runs:
        return NOTHING
    items = format_html_join("", "<li>{}</li>", ((in_zone(time),) for time in schedule.next_runs))
    return format_html('<ol class="skipqueue-times">{}</ol>', items)


def times(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if not row.cron:
        return schedule.words
    return format_html(CELL_WITH_DETAIL, schedule.words, f"{shortened(row.cron)} · {shortened(row.timezone)}")


def _name(schedule: ScheduleState) -> Cell:
    address = address_of("schedule_change", schedule.row.pk)
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', address, shortened(schedule.row.name))


def _state(schedule: ScheduleState) -> Cell:
    row: Schedule = schedule.row
    detail = shortened(schedule.error if schedule.state in FIRING_STATES else row.paused_by)
    return format_html("{} " + CELL_WITH_DETAIL.format("", "{}"), state_badge(schedule), detail)


SCHEDULE_CELLS: Renderers[ScheduleState] = {
    "name": _name,
    "state": _state,
    "times": times,
    "timezone": None,
    "next": next_run,
    "last": last_run,
    "job": None,
    "task": lambda schedule: task_link(schedule.row.task),
    "source": lambda schedule: schedule.row.get_source_display(),
}

SCHEDULE_COLUMNS = columns_of(SCHEDULE, (), SCHEDULE_CELLS)

DASHBOARD_COLUMNS = SCHEDULE_COLUMNS[:5]

MOST_SCHEDULES_ON_DASHBOARD = 5


def on_dashboard(_: object = None) -> dict[str, Any]:
    """Return the dashboard's table: schedules that need attention, then the schedules that fire next."""
    schedules, hidden = first_schedules(MOST_SCHEDULES_ON_DASHBOARD)
    return {"columns": DASHBOARD_COLUMNS, "rows": rows(DASHBOARD_COLUMNS, schedules), "hidden": hidden}


def on_task(task: str) -> dict[str, Any]:
    """Return the schedules of this task, for the same template as the dashboard's."""
    return {"columns": DASHBOARD_COLUMNS, "rows": rows(DASHBOARD_COLUMNS, schedule_states(task=task)), "hidden": 0}


def schedule_of(job: AbstractJob) -> Any:
    """Return the id and name of the schedule that enqueued the job, or `None`."""
    name = name_of_schedule(job)
    return Schedule.objects.filter(name=name).values("pk", "name").first() if name else None


DEFINITION_FIELDS = ("name", "task", "args", "kwargs", "cron", "interval", "timezone", "catch_up", "overlap", "jitter")

TIME_FIELDS = {"cron", "interval", "timezone"}


def _tasks() -> list[tuple[str, str]]:
    return [("", "---------"), *sorted((task.name, task.name) for task in registry if not task.is_internal)]


def _json_field(label: Any, help_text: Any, empty: type) -> forms.JSONField:
    widget = AdminTextareaWidget({"rows": 2})
    return forms.JSONField(label=label, required=False, initial=empty, help_text=help_text, widget=widget)


class ScheduleForm(forms.ModelForm):
    task = forms.ChoiceField(label=_("Task"), choices=_tasks)
    args = _json_field(_("Positional arguments"), _("A list, as JSON."), list)
    kwargs = _json_field(_("Keyword arguments"), _("An object, as JSON."), dict)
    cron = forms.CharField(
        label=_("Cron expression"),
        required=False,
        help_text=_("Minute, hour, day of month, month, day of week: 0 9 * * mon-fri. Or give an interval instead."),
    )
    timezone = forms.ChoiceField(
        label=_("Time zone"),
        choices=lambda: [(name, name) for name in sorted(available_timezones() - {"localtime"})],
        help_text=_("The time zone of the cron expression."),
    )

    class Meta:
        model = Schedule
        fields = DEFINITION_FIELDS
        widgets = {"name": AdminTextInputWidget}
        help_texts = {"interval": _("Hours, minutes and seconds: 00:05:00 is every five minutes.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        schedule = self.instance
        self._saved = {"task": schedule.task, "args": schedule.args, "kwargs": schedule.kwargs} if schedule.pk else {}
        if self._saved:
            self._shown = redacted(schedule.task, schedule.args, schedule.kwargs)
            self.initial.update(args=self._shown.args, kwargs=self._shown.kwargs)
        if "interval" in self.fields:  # missing for a user who may only view schedules
            self.fields["timezone"].initial = settings.TIME_ZONE
            self.fields["catch_up"].initial, self.fields["overlap"].initial = CatchUp.LATEST, Overlap.ALLOW
            self.fields["interval"].required = self.fields["jitter"].required = False
            task = self.initial.get("task")
            if task and task not in dict(_tasks()):  # keep a task that this process does not know
                self.fields["task"].choices = [*_tasks(), (task, task)]  # type: ignore[attr-defined]

    def clean_args(self) -> Any:
        return [] if self.cleaned_data["args"] is None else self._restored("args")

    def clean_kwargs(self) -> Any:
        return {} if self.cleaned_data["kwargs"] is None else self._restored("kwargs")

    def clean_cron(self) -> str:
        return " ".join(self.cleaned_data["cron"].split())

    def clean_jitter(self) -> float:
        try:
            return jitter_seconds(self.cleaned_data["jitter"])
        except InvalidOption as error:
            raise forms.ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        """Check the times, then the task and its arguments, as `@periodic` does."""
        cleaned: dict[str, Any] = super().clean() or {}
        if self.errors:
            return cleaned
        try:
            timetable(cron=cleaned["cron"], interval=cleaned["interval"], zone=cleaned["timezone"])
        except SkipQueueError as error:
            self.add_error("interval" if cleaned["interval"] and not cleaned["cron"] else "cron", str(error))
            return cleaned
        try:
            entry = ScheduleEntry(source="admin", **{name: cleaned[name] for name in DEFINITION_FIELDS})
            entry.check()
            own_database = entry.database if queue_settings.is_spread else queue_settings.database
        except SkipQueueError as error:
            text = self._shown.text(str(error)) if self._saved else str(error)  # the error may quote an argument
            self.add_error("name" if text.startswith("name") else "kwargs", text)
            return cleaned
        if own_database != queue_settings.database:
            refusal = _("The key of these jobs belongs in the database %(alias)s. Add the schedule there.")
            self.add_error("kwargs", refusal % {"alias": own_database})
        return cleaned

    def _restored(self, name: str) -> Any:
        """Replace masks in a field by the saved secrets, unless the task was changed: it may show the secrets."""
        typed = self.cleaned_data[name]
        is_same_task = bool(self._saved) and self.cleaned_data.get("task") == self._saved["task"]
        shown_value, saved_value = (getattr(self._shown, name), self._saved[name]) if is_same_task else (None, None)
        try:
            return restored(typed, shown_value, saved_value)
        except UnknownMask:
            raise forms.ValidationError(_("This mask hides no value of this schedule. Enter the value.")) from None


RUN_PERMISSION = "django_skipqueue.run_schedule"


def _apply_verb(request: HttpRequest, schedule: Schedule, verb: str) -> tuple[str, int]:
    """Apply one of `SCHEDULE_VERBS`. Return a message for the user, and its level."""
    store, user_name, values = Store.default(), request.user.get_username(), {"name": shortened(schedule.name)}
    if verb == "run":
        try:
            job_id = operate.run_now(store, schedule.pk)
        except SkipQueueError as error:
            return str(error), messages.ERROR
        message = gettext("Job %(id)s of the schedule “%(name)s” was enqueued.")
        return message % {**values, "id": job_id}, messages.SUCCESS
    if verb == "pause":
        if operate.pause(store, schedule.pk, by=user_name):
            return gettext("The schedule “%(name)s” is paused.") % values, messages.SUCCESS
        return gettext("The schedule “%(name)s” is already paused.") % values, messages.WARNING
    if operate.resume(store, schedule.pk, by=user_name):
        return gettext("The schedule “%(name)s” was resumed.") % values, messages.SUCCESS
    return gettext("The schedule “%(name)s” is not paused.") % values, messages.WARNING


OPTION_FIELDS = ("catch_up", "overlap", "jitter", "source")


def _state_field(title: Any, cell: Callable[[ScheduleState], Cell]) -> Callable[[Any, Any], Cell]:
    """Make a read-only field of a schedule's page. The first field reads the schedule's state for all fields."""

    @admin.display(description=title)
    def field(_: Any, schedule: Any) -> Cell:
        if not hasattr(schedule, "found_state"):
            schedule.found_state = schedule_states(pk=schedule.pk)[0]
        return cell(schedule.found_state)

    return field


@admin.register(Schedule)
class ScheduleAdmin(OwnViews):
    """Users can pause and run all schedules, but edit only schedules that were added in the admin."""

    form = ScheduleForm

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/schedule_list.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow adding only to users who may also view schedules."""
        return super().has_add_permission(request) and self.has_view_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """Allow changes only to schedules that were added in the admin, not to those from code or settings."""
        return super().has_change_permission(request, obj) and (obj is None or obj.source == "admin")

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """Refuse to delete a schedule that code or settings still define."""
        is_undefined = obj is None or obj.source == "admin" or obj.retired_at is not None
        return super().has_delete_permission(request, obj) and self.has_view_permission(request, obj) and is_undefined

    def get_urls(self) -> list[URLPattern]:
        verbs = [
            self.page(f"<int:schedule_id>/{verb}/", verb, partial(self.verb_view, verb=verb)) for verb in SCHEDULE_VERBS
        ]
        return [*verbs, *super().get_urls()]

    @refreshing
    @guarded(*READ)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """List the schedules."""
        schedules = schedule_states()
        may_run = request.user.has_perm(RUN_PERMISSION)
        content = {
            "columns": SCHEDULE_COLUMNS,
            "rows": [
                {
                    "name": shortened(schedule.row.name),
                    "cells": cells,
                    "verbs": _verbs_for(schedule.row) if may_run else {},
                }
                for schedule, cells in zip(schedules, rows(SCHEDULE_COLUMNS, schedules), strict=True)
            ],
            "most": MOST_SCHEDULES_SHOWN if len(schedules) == MOST_SCHEDULES_SHOWN else 0,
            "may_run": may_run,
            "add": self.address("add") if self.has_add_permission(request) else "",
        }
        title = capfirst(str(self.opts.verbose_name_plural))
        return self.show(request, "schedule/change_list.html", None, content | (extra_context or {}), title=title)

    @guarded("POST", may=lambda _, request: request.user.has_perm(RUN_PERMISSION))
    def verb_view(self, request: HttpRequest, schedule_id: int, *, verb: str) -> HttpResponse:
        schedule = Schedule.objects.filter(pk=schedule_id).first() if schedule_id < 2**63 else None
        if schedule is None:
            raise Http404
        message, level = _apply_verb(request, schedule, verb)
        if level == messages.SUCCESS:
            self.log_change(request, schedule, message)
        self.message_user(request, message, level)
        return HttpResponseRedirect(self.address("changelist"))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        schedule = Schedule.objects.filter(pk=object_id).first() if object_id and is_id(object_id) else None
        verbs = _verbs_for(schedule) if schedule and request.user.has_perm(RUN_PERMISSION) else {}
        jobs = address_of("job_changelist", query={"task": schedule.task}) if schedule else ""
        context = {"show_save_and_continue": False, "verbs": verbs, "jobs": jobs}
        return super().changeform_view(request, object_id, form_url, context | (extra_context or {}))

    def response_add(self, request: HttpRequest, obj: Schedule, post_url_continue: str | None = None) -> HttpResponse:
        return self._to_list(request, gettext("The schedule “%(name)s” was added.") % {"name": shortened(obj.name)})

    def response_change(self, request: HttpRequest, obj: Schedule) -> HttpResponse:
        return self._to_list(request, gettext("The schedule “%(name)s” was changed.") % {"name": shortened(obj.name)})

    def _to_list(self, request: HttpRequest, message: str) -> HttpResponse:
        """Show the message on the list, or on an empty form if the user asked to add another schedule."""
        self.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(self.address("add" if "_addanother" in request.POST else "changelist"))

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        """Ask for confirmation, because Django's own question does not name the database. Django deletes on a POST."""
        schedule = context["object"]
        return self.ask(
            request,
            title=gettext("Delete the schedule “%(name)s”?") % {"name": shortened(schedule.name)},
            subject=gettext("Delete the schedule"),
            explanation=gettext("It will enqueue no more jobs. Jobs that it has already enqueued stay."),
            is_dangerous=True,
            back=self.address("change", schedule.pk),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> tuple[str, ...]:
        """Show the state above the form. If the user may not change the schedule, show its definition too."""
        if obj is None:
            return ()
        state_fields = ("state", "fires", "five_next", "last", "skipped", "problem")
        if self.has_change_permission(request, obj):
            return state_fields
        return ("name", "task", "arguments", *state_fields, *OPTION_FIELDS)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        editable = DEFINITION_FIELDS if obj is None or self.has_change_permission(request, obj) else ()
        read_only = self.get_readonly_fields(request, obj)
        fieldsets = ((None, read_only), (_("Definition") if obj else None, editable))
        return [(title, {"fields": fields}) for title, fields in fieldsets if fields]

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        store = Store.default()
        with transaction.atomic(using=store.alias):
            if change:
                obj.save(
                    using=store.alias, update_fields=[name for name in form.changed_data if name in DEFINITION_FIELDS]
                )
            else:
                obj.save(using=store.alias)
            if not change or TIME_FIELDS & set(form.changed_data):
                operate.plan_again(store, obj.pk)
            else:
                operate.try_again(store, obj.pk)

    # The read-only fields of a schedule's page

    state = _state_field(_("state"), state_badge)
    fires = _state_field(_("fires"), times)
    five_next = _state_field(_("next five runs"), next_runs)
    last = _state_field(_("last run"), last_run)
    skipped = _state_field(
        _("last skipped"), lambda schedule: exact(schedule.row.skipped_at) if schedule.row.skipped_at else NOTHING
    )
    problem = _state_field(_("error"), lambda schedule: schedule.row.error or NOTHING)

    @admin.display(description=_("arguments"))
    def arguments(self, schedule: Schedule) -> SafeString:
        text = arguments(schedule.task, redacted(schedule.task, schedule.args, schedule.kwargs))
        return format_html("<code>{}</code>", text) if text else SafeString(NOTHING)


def _verbs_for(schedule: Schedule) -> dict[str, str]:
    """Return the verbs that the page offers for a schedule, each with the URL of its form."""
    verbs = ("resume" if schedule.paused_at else "pause", "run")
    return {verb: address_of(f"schedule_{verb}", schedule.pk) for verb in verbs}

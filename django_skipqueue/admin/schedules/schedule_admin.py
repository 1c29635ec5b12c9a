"""Schedules in the admin: their list, the page of one, the form of those that are made here, and what can be done.

Invariant: every view checks the user's permission itself, a GET changes nothing, and every change is logged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...exceptions import SkipQueueError
from ...models import Schedule
from ...operators.arguments import redacted
from ...operators.durations import exact
from ...operators.ids import is_id
from ...operators.schedule_states import MOST, ScheduleState, schedule_states
from ...periodic import operate
from ...store import Store
from ..ui.cells import arguments, shortened
from ..ui.own_views import OwnViews
from ..ui.refreshing import refreshing
from .columns import COLUMNS, NOTHING, last_run, next_runs, state_badge, times
from .form import DEFINITION, TIMES, ScheduleForm

MAY_RUN = "django_skipqueue.run_schedule"

Done = tuple[str, int]
"""A message to the user, with its level."""


def _pause(request: HttpRequest, row: Schedule) -> Done:
    if operate.pause(Store.default(), row.pk, by=request.user.get_username()):
        return gettext("The schedule “%(name)s” is paused."), messages.SUCCESS
    return gettext("The schedule “%(name)s” is paused already."), messages.WARNING


def _resume(request: HttpRequest, row: Schedule) -> Done:
    if operate.resume(Store.default(), row.pk, by=request.user.get_username()):
        return gettext("The schedule “%(name)s” was resumed."), messages.SUCCESS
    return gettext("The schedule “%(name)s” is not paused."), messages.WARNING


def _run(_request: HttpRequest, row: Schedule) -> Done:
    try:
        job_id = operate.run_now(Store.default(), row.pk)
    except SkipQueueError as error:
        return str(error).replace("%", "%%"), messages.ERROR
    return gettext("Job %(id)s of the schedule “%(name)s” was enqueued.").replace(
        "%(id)s", str(job_id)
    ), messages.SUCCESS


VERBS: dict[str, Callable[[HttpRequest, Schedule], Done]] = {"pause": _pause, "resume": _resume, "run": _run}


@admin.register(Schedule)
class ScheduleAdmin(OwnViews):
    """Schedules of code and settings can be paused and run; schedules of the admin can be edited as well."""

    form = ScheduleForm

    class Media:
        css = {"all": ["django_skipqueue/admin.css", "django_skipqueue/schedule_list.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Who may not view schedules may not add one either."""
        return super().has_add_permission(request) and self.has_view_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """What code or settings define is changed there."""
        return super().has_change_permission(request, obj) and (obj is None or obj.source == "admin")

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """What code or settings define is removed there. One that they no longer have can be deleted at once."""
        is_free = obj is None or obj.source == "admin" or obj.retired_at is not None
        return super().has_delete_permission(request, obj) and self.has_view_permission(request, obj) and is_free

    def get_urls(self) -> list[URLPattern]:
        verbs = [
            self.page(f"<int:schedule_id>/{name}/", name, partial(self.verb_view, verb=verb))
            for name, verb in VERBS.items()
        ]
        return [*verbs, *super().get_urls()]

    @refreshing
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """All schedules. Accepts no POST."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = schedule_states()
        may_run = request.user.has_perm(MAY_RUN)
        context = self.context(request, None, title=capfirst(str(self.opts.verbose_name_plural))) | {
            "columns": COLUMNS,
            "rows": [self._row(schedule, may_run=may_run) for schedule in found],
            "most": MOST if len(found) == MOST else 0,
            "may_run": may_run,
            "add": self.address("add") if self.has_add_permission(request) else "",
        }
        return TemplateResponse(
            request, "admin/django_skipqueue/schedule/change_list.html", context | (extra_context or {})
        )

    def verb_view(self, request: HttpRequest, schedule_id: int, *, verb: Any) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (request.user.has_perm(MAY_RUN) and self.has_view_permission(request)):
            raise PermissionDenied
        row = Schedule.objects.filter(pk=schedule_id).first() if schedule_id < 2**63 else None
        if row is None:
            raise Http404
        text, level = verb(request, row)
        message = text % {"name": shortened(row.name)}
        if level == messages.SUCCESS:
            self.log_change(request, row, message)
        self.message_user(request, message, level)
        return HttpResponseRedirect(self.address("changelist"))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        more = {"show_save_and_continue": False, "verbs": self._verbs(request, object_id)}
        return super().changeform_view(request, object_id, form_url, more | (extra_context or {}))

    def _verbs(self, request: HttpRequest, object_id: str | None) -> dict[str, str]:
        """The buttons of the page of a schedule, and where each is posted."""
        row = Schedule.objects.filter(pk=object_id).first() if object_id and is_id(object_id) else None
        return _verbs_for(row) if row and request.user.has_perm(MAY_RUN) else {}

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> tuple[str, ...]:
        """How it is, above the form; of code and settings also what it does."""
        if obj is None:
            return ()
        shown = ("state", "fires", "five_next", "last", "skipped", "problem")
        return shown if self.has_change_permission(request, obj) else ("name", "task", "arguments", *shown, *OPTIONS)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        edited = DEFINITION if obj is None or self.has_change_permission(request, obj) else ()
        shown = self.get_readonly_fields(request, obj)
        parts = ((None, shown), (_("Definition") if obj else None, edited))
        return [(title, {"fields": fields}) for title, fields in parts if fields]

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        store = Store.default()
        with transaction.atomic(using=store.alias):
            if change:
                obj.save(using=store.alias, update_fields=[name for name in form.changed_data if name in DEFINITION])
            else:
                obj.save(using=store.alias)
            if not change or TIMES & set(form.changed_data):
                operate.plan_anew(store, obj.pk)
            else:
                operate.try_again(store, obj.pk)

    # The page of one

    @admin.display(description=_("state"))
    def state(self, row: Schedule) -> SafeString:
        return state_badge(_state_of(row))

    @admin.display(description=_("fires"))
    def fires(self, row: Schedule) -> str:
        return times(_state_of(row))

    @admin.display(description=_("next five runs"))
    def five_next(self, row: Schedule) -> str:
        return next_runs(_state_of(row))

    @admin.display(description=_("last run"))
    def last(self, row: Schedule) -> str:
        return last_run(_state_of(row))

    @admin.display(description=_("last skipped"))
    def skipped(self, row: Schedule) -> str:
        return exact(row.skipped_at) if row.skipped_at else NOTHING

    @admin.display(description=_("error"))
    def problem(self, row: Schedule) -> str:
        return row.error or NOTHING

    @admin.display(description=_("arguments"))
    def arguments(self, row: Schedule) -> SafeString:
        text = arguments(row.task, redacted(row.task, row.args, row.kwargs))
        return format_html("<code>{}</code>", text) if text else SafeString(NOTHING)

    def _row(self, schedule: ScheduleState, *, may_run: bool) -> dict[str, Any]:
        return {
            "name": shortened(schedule.row.name),
            "cells": [(column, column.cell(schedule)) for column in COLUMNS],
            "verbs": _verbs_for(schedule.row) if may_run else {},
        }


OPTIONS = ("catch_up", "overlap", "jitter", "source")


def _verbs_for(row: Schedule) -> dict[str, str]:
    verbs = ("resume" if row.paused_at else "pause", "run")
    return {verb: reverse(f"admin:django_skipqueue_schedule_{verb}", args=[row.pk]) for verb in verbs}


def _state_of(row: Any) -> ScheduleState:
    if not hasattr(row, "found_state"):
        row.found_state = schedule_states(pk=row.pk)[0]
    found: ScheduleState = row.found_state
    return found

"""The columns of the list of schedules. A further one is a function of a `ScheduleState`, and an entry in `COLUMNS`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...models import Schedule, Status
from ...operators.durations import distance
from ...operators.schedule_states import STATES, ScheduleState
from ..ui.cells import badge, shortened

Cell = SafeString | str

NOTHING = "\N{EN DASH}"
"""In a cell of which there is nothing to say."""

BADGES = {"active": "completed", "paused": "paused", "late": "failed", "error": "failed", "retired": "discarded"}
"""The colour of each state: that of a status of jobs."""

CELL = '{} <span class="skipqueue-detail">{}</span>'


class Column(NamedTuple):
    name: str
    """For the style sheet: the class of its cells is `field-NAME`."""
    title: Any
    cell: Callable[[ScheduleState], Cell]


def in_zone(time: datetime) -> str:
    """A time in its own time zone: `2026-03-01 09:00 CET`."""
    return date_format(time, "Y-m-d H:i:s T" if time.second else "Y-m-d H:i T")


def state_badge(schedule: ScheduleState) -> SafeString:
    return badge(BADGES[schedule.state], STATES[schedule.state])


def last_run(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if row.last_run_at is None:
        return NOTHING
    ago = distance(row.last_run_at, schedule.now)
    if schedule.last_status is None:
        return ago
    address = reverse("admin:django_skipqueue_job_change", args=[row.last_job_id])
    mark = badge(schedule.last_status, Status(schedule.last_status).label)
    return format_html('{} <a href="{}">#{}</a> {}', ago, address, row.last_job_id, mark)


def next_run(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if schedule.next_run is None or row.next_run_at is None:
        return NOTHING
    return format_html(CELL, distance(row.next_run_at, schedule.now), in_zone(schedule.next_run))


def next_runs(schedule: ScheduleState) -> Cell:
    if not schedule.next_runs:
        return NOTHING
    items = format_html_join("", "<li>{}</li>", ((in_zone(time),) for time in schedule.next_runs))
    return format_html('<ol class="skipqueue-times">{}</ol>', items)


def times(schedule: ScheduleState) -> Cell:
    row = schedule.row
    if not row.cron:
        return schedule.words
    return format_html(CELL, schedule.words, f"{shortened(row.cron)} · {shortened(row.timezone)}")


def _name(schedule: ScheduleState) -> Cell:
    address = reverse("admin:django_skipqueue_schedule_change", args=[schedule.row.pk])
    return format_html('<a class="skipqueue-name" href="{}">{}</a>', address, shortened(schedule.row.name))


def _state(schedule: ScheduleState) -> Cell:
    row: Schedule = schedule.row
    detail = shortened(row.error) if schedule.state in ("error", "late") else shortened(row.paused_by)
    return format_html("{} " + CELL.format("", "{}"), state_badge(schedule), detail)


def _task(schedule: ScheduleState) -> Cell:
    return shortened(schedule.row.task)


COLUMNS = (
    Column("name", _("name"), _name),
    Column("state", _("state"), _state),
    Column("times", _("fires"), times),
    Column("next", _("next run"), next_run),
    Column("last", _("last run"), last_run),
    Column("task", _("task"), _task),
    Column("source", _("source"), lambda schedule: schedule.row.get_source_display()),
)

ON_DASHBOARD = COLUMNS[:5]

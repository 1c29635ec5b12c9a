"""Schedules as operators see them: their times in words, their next runs, their last job."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, When, Window
from django.db.models.functions import Now
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext_lazy as _

from ..exceptions import SkipQueueError
from ..models import Job, Schedule
from ..periodic.timetable import timetable, upcoming, zone_of
from .schedule_words import in_words

MOST = 500
"""Schedules that are shown."""

NEXT_RUNS = 5

LATE = timedelta(minutes=1)
"""By how much a schedule may be late."""

STATES = {
    "active": _("on time"),
    "paused": _("paused"),
    "late": _("late"),
    "error": _("cannot fire"),
    "retired": _("not in the code"),
}


MAY_FIRE = Q(retired_at=None, paused_at=None)

IN_TROUBLE = Case(When(MAY_FIRE & (~Q(error="") | Q(next_run_at__lt=Now() - LATE)), then=1), default=0)
"""1 for the states `error` and `late`, 0 for the others."""

NEXT_RUN = Case(When(MAY_FIRE, then=F("next_run_at")))
"""The next time of a schedule that fires."""


@dataclass(frozen=True)
class ScheduleState:
    row: Schedule
    now: datetime
    last_status: str | None
    """The status of the last job; `None` if there is none any more."""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.row.retired_at is not None:
            return "retired"
        if self.row.paused_at is not None:
            return "paused"
        if self.row.error:
            return "error"
        is_late = self.row.next_run_at is not None and self.row.next_run_at < self.now - LATE
        return "late" if is_late else "active"

    @property
    def words(self) -> str:
        return in_words(cron=self.row.cron, interval=self.row.interval)

    @property
    def fires(self) -> bool:
        return self.state in ("active", "late", "error") and self.row.next_run_at is not None

    @property
    def next_run(self) -> datetime | None:
        """The next time, in the schedule's time zone. `None` if it does not fire, or has no time zone."""
        moment = self.row.next_run_at
        if not self.fires or moment is None:
            return None
        try:
            return (make_aware(moment) if is_naive(moment) else moment).astimezone(zone_of(self.row.timezone))
        except SkipQueueError:
            return None

    @cached_property
    def next_runs(self) -> list[datetime]:
        """The next times, in the schedule's time zone. Empty if it does not fire."""
        planned = self.next_run
        if planned is None:
            return []
        try:
            table = timetable(cron=self.row.cron, interval=self.row.interval, zone=self.row.timezone)
        except SkipQueueError:
            return []
        return [time.astimezone(planned.tzinfo) for time in upcoming(table, planned, NEXT_RUNS)]


@dataclass(frozen=True)
class FirstSchedules:
    states: list[ScheduleState]
    others: int
    """The number of the others."""


def schedule_states(**filters: object) -> list[ScheduleState]:
    """The schedules by name, in one query; the first `MOST`."""
    rows = _with_states(Schedule.objects.filter(**filters)).order_by("name", "pk")[:MOST]
    return [_state(row) for row in rows]


def first_schedules(most: int) -> FirstSchedules:
    """Of those in `schedule_states`, the ones in trouble, and then those that fire next: `most`, in one query."""
    listed = Schedule.objects.order_by("name", "pk").values("pk")[:MOST]
    found = _with_states(Schedule.objects.filter(pk__in=listed)).annotate(number=Window(Count("*")))
    rows = list(found.order_by(IN_TROUBLE.desc(), NEXT_RUN.asc(nulls_last=True), "name", "pk")[:most])
    return FirstSchedules([_state(row) for row in rows], rows[0].number - len(rows) if rows else 0)


def _with_states(schedules: "QuerySet[Schedule]") -> "QuerySet[Any]":
    status = Job.objects.filter(pk=OuterRef("last_job_id")).values("status")
    return schedules.annotate(now=Now(), last_status=Subquery(status))


def _state(row: Any) -> ScheduleState:
    return ScheduleState(row, row.now, row.last_status)

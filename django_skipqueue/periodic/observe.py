"""Reads how schedules are: those that are late, and the times of all."""

from dataclasses import dataclass

from ..store import Store
from . import sql


@dataclass(frozen=True)
class LateSchedule:
    """A schedule whose time has passed, and that has not fired. A row of `sql.LATE`, in the order of its columns."""

    name: str
    task: str
    late: float
    """Seconds."""
    error: str


@dataclass(frozen=True)
class ScheduleTimes:
    """A row of `sql.TIMES`, in the order of its columns. Times are seconds since the epoch; `None`: never."""

    name: str
    last_run: float | None
    next_run: float | None
    late: float
    is_paused: bool


def late_schedules(store: Store, *, limit: int, seconds: float = 0.0) -> list[LateSchedule]:
    """The schedules that are late by this many seconds, the latest first."""
    return [LateSchedule(*row) for row in store.rows(sql.LATE, {"limit": limit, "seconds": seconds})]


def schedule_times(store: Store, *, limit: int) -> list[ScheduleTimes]:
    return [ScheduleTimes(*row) for row in store.rows(sql.TIMES, {"limit": limit})]

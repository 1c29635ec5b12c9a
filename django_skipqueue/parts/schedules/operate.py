"""The verbs of operators for schedules (pause, resume, run now, plan again), and reading how schedules are.

Invariant: the row is locked while a verb changes it, so that no supervisor fires it meanwhile.

`late_schedules` reads the schedules that are late, `schedule_times` the times of all.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import Error, transaction

from ...exceptions import InvalidOption, SkipQueueError
from ...queue.enqueue import new_job
from ...queue.parameters import noted
from ...queue.store import Store
from ...values.codec import decode
from ...values.records import EnqueuedJob
from . import sql
from .entry import check_call, known_task
from .events import SchedulePaused, ScheduleResumed
from .fire import DueSchedule, error_text, instant, is_unfinished, spec_at


def pause(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Have a schedule fire no more, until somebody resumes it. Returns whether it was not paused."""
    for name, stored_by in store.rows(sql.PAUSE, {"id": schedule_id, "by": noted(by, "")["by"]}):
        store.send(SchedulePaused(store.alias, name, stored_by))
        return True
    return False


def resume(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Have a schedule fire again, from its next time on: those of the pause are not caught up with.

    Returns whether it was paused.
    """
    with transaction.atomic(using=store.alias):
        found = _locked(store, schedule_id)
        rows = store.rows(sql.RESUME, {"id": schedule_id, **_next(found)}) if found else []
    for (name,) in rows:
        store.send(ScheduleResumed(store.alias, name, noted(by, "")["by"]))
        return True
    return False


def run_now(store: Store, schedule_id: int) -> int:
    """Enqueue a job of the schedule now, and return its id. Its next time stays as it is. Works while it is paused.

    Raises `SkipQueueError` if the job cannot be enqueued; no secret of its arguments is in the message. It runs the
    project's code, like `.defer()`.
    """
    with transaction.atomic(using=store.alias):
        schedule = _locked(store, schedule_id)
        if schedule is None:
            raise InvalidOption("This schedule does not exist any more.")
        last = schedule.last_job_id
        if schedule.overlap == "skip" and last is not None and is_unfinished(store, last):
            raise InvalidOption(f"The last job, {last}, is unfinished, and the schedule skips overlapping jobs.")
        try:
            inserted = _enqueued(store, schedule)
        except Error:  # of the database
            raise
        except Exception as error:  # of whatever kind: the project's code makes the key, and the row may be odd
            kind = type(error) if isinstance(error, SkipQueueError) else InvalidOption
            raise kind(error_text(schedule, error)) from None
        store.execute(sql.RAN, {"id": schedule_id, "job_id": inserted.id})
        return inserted.id


def _enqueued(store: Store, schedule: DueSchedule) -> EnqueuedJob:
    args, kwargs = decode(schedule.args), decode(schedule.kwargs)
    check_call(args, kwargs)
    task = known_task(schedule.task)
    call = task.encoded(args, kwargs)
    spec = spec_at(task.spec(), schedule, instant(schedule.now), jitter=0.0)
    inserted = new_job(store, store.enqueue, spec, call)
    if inserted is None:
        raise InvalidOption(f"Another job holds the unique key {call.unique_key!r}.")
    return inserted


def plan_anew(store: Store, schedule_id: int) -> datetime | None:
    """Set the next time of a schedule whose definition was edited, and return it. Raises as `timetable` does."""
    with transaction.atomic(using=store.alias):
        schedule = _locked(store, schedule_id)
        following = None if schedule is None else schedule.timetable.first(instant(schedule.now))
        store.execute(sql.PLAN, {"id": schedule_id, "next": following and following.timestamp()})
        return following


def try_again(store: Store, schedule_id: int) -> None:
    """Have a schedule that could not fire try its time at once, after an edit of something else than its times."""
    store.execute(sql.TRY_AGAIN, {"id": schedule_id})


def _locked(store: Store, schedule_id: int) -> DueSchedule | None:
    for row in store.rows(sql.LOCK, {"id": schedule_id}):
        return DueSchedule(*row)
    return None


def _next(schedule: DueSchedule) -> dict[str, Any]:
    """The next time from now on. Of a row that cannot be used it stays: a supervisor notes the error."""
    now = instant(schedule.now)
    try:
        if schedule.planned_at is None:
            following = schedule.timetable.first(now)
        elif schedule.planned > now:
            following = schedule.planned
        else:
            following = schedule.timetable.after(now, planned=schedule.planned)
    except SkipQueueError:
        return {"next": schedule.planned_at}
    return {"next": following and following.timestamp()}


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

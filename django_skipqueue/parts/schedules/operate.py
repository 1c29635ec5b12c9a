"""The verbs of operators for schedules (pause, resume, run now, plan again), and reading how schedules are.

Invariant: the row is locked while a verb changes it, so that no supervisor fires it meanwhile.

`late_schedules` reads the schedules that are late.
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
from .entry import check_call, known_task
from .events import SchedulePaused, ScheduleResumed
from .fire import DueSchedule, error_text, is_unfinished, spec_at
from .timetable import instant

# pause → the name, and by whom; no row if it is paused already. Index: the primary key.
PAUSE = """
UPDATE skipqueue_schedule
SET paused_at = statement_timestamp(), paused_by = %(by)s
WHERE id = %(id)s AND paused_at IS NULL
RETURNING name, paused_by
"""


def pause(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Have a schedule fire no more, until somebody resumes it. Returns whether it was not paused."""
    for name, stored_by in store.rows(PAUSE, {"id": schedule_id, "by": noted(by, "")["by"]}):
        store.send(SchedulePaused(store.alias, name, stored_by))
        return True
    return False


# resume → the name; no row if it is not paused. The row is locked. Index: the primary key.
RESUME = """
UPDATE skipqueue_schedule
SET paused_at = NULL,
    paused_by = '',
    next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8)
WHERE id = %(id)s AND paused_at IS NOT NULL
RETURNING name
"""


def resume(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Have a schedule fire again, from its next time on: those of the pause are not caught up with.

    Returns whether it was paused.
    """
    with transaction.atomic(using=store.alias):
        found = _locked(store, schedule_id)
        rows = store.rows(RESUME, {"id": schedule_id, **_next(found)}) if found else []
    for (name,) in rows:
        store.send(ScheduleResumed(store.alias, name, noted(by, "")["by"]))
        return True
    return False


# run_now: the job that it has enqueued. The row is locked. Index: the primary key.
RAN = """
UPDATE skipqueue_schedule
SET last_run_at = statement_timestamp(),
    last_job_id = %(job_id)s,
    earlier_job_ids = (array_remove(last_job_id || earlier_job_ids, NULL))[1:4]
WHERE id = %(id)s
"""


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
        store.execute(RAN, {"id": schedule_id, "job_id": inserted.id})
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


# plan_anew: the next time. The row is locked. Index: the primary key.
PLAN = """
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8), fire_at = to_timestamp(%(next)s::float8), error = ''
WHERE id = %(id)s
"""


def plan_anew(store: Store, schedule_id: int) -> datetime | None:
    """Set the next time of a schedule whose definition was edited, and return it. Raises as `timetable` does."""
    with transaction.atomic(using=store.alias):
        schedule = _locked(store, schedule_id)
        following = None if schedule is None else schedule.timetable.first(instant(schedule.now))
        store.execute(PLAN, {"id": schedule_id, "next": following and following.timestamp()})
        return following


# try_again: at its time, without the error. Index: the primary key.
TRY_AGAIN = "UPDATE skipqueue_schedule SET fire_at = next_run_at, error = '' WHERE id = %(id)s"


def try_again(store: Store, schedule_id: int) -> None:
    """Have a schedule that could not fire try its time at once, after an edit of something else than its times."""
    store.execute(TRY_AGAIN, {"id": schedule_id})


# resume, run_now, plan_anew → the schedule, in the columns of DUE. Index: the primary key.
LOCK = """
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE id = %(id)s
FOR NO KEY UPDATE
"""


def _locked(store: Store, schedule_id: int) -> DueSchedule | None:
    return next((DueSchedule(*row) for row in store.rows(LOCK, {"id": schedule_id})), None)


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
    """A schedule whose time has passed, and that has not fired. A row of `LATE`, in the order of its columns."""

    name: str
    task: str
    late: float
    """Seconds."""
    error: str
    id: int
    planned_at: datetime


# late_schedules → the schedules that are late, the latest first. The table has a row for each schedule.
LATE = """
SELECT name, task, extract(epoch FROM statement_timestamp() - next_run_at)::float8, error, id, next_run_at
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND retired_at IS NULL
    AND next_run_at < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY next_run_at
LIMIT %(limit)s
"""


def late_schedules(store: Store, *, limit: int, seconds: float = 0.0) -> list[LateSchedule]:
    """The schedules that are late by this many seconds, the latest first."""
    return [LateSchedule(*row) for row in store.rows(LATE, {"limit": limit, "seconds": seconds})]

"""What operators can do with a schedule: pause, resume, run it now, or plan it again after an edit.

Each function locks the schedule's row, so that no supervisor fires the schedule in the meantime.
"""

from datetime import datetime
from typing import Any

from django.db import Error, transaction

from ...exceptions import InvalidOption, SkipQueueError
from ...queue.enqueue import new_job
from ...queue.fragments import joined
from ...queue.parameters import noted
from ...queue.store import Store
from ...values.codec import decode
from ...values.records import EnqueuedJob
from .entry import check_call, known_task
from .events import SchedulePaused, ScheduleResumed
from .fire import FAILING_SINCE_RUN, DueSchedule, error_text, is_unfinished, spec_at
from .timetable import instant

# Sent by pause. Returns the name, and who paused it; no row if the schedule is already paused. Index: the primary key.
PAUSE_SCHEDULE = """
UPDATE skipqueue_schedule
SET paused_at = statement_timestamp(), paused_by = %(by)s
WHERE id = %(id)s AND paused_at IS NULL
RETURNING name, paused_by
"""


def pause(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Pause a schedule until somebody resumes it. Return False if it was already paused."""
    for name, stored_by in store.rows(PAUSE_SCHEDULE, {"id": schedule_id, "by": noted(by, "")["by"]}):
        store.send(SchedulePaused(store.alias, name, stored_by))
        return True
    return False


# Sent by resume, which has locked the row. Returns the name; no row if the schedule is not paused. Index: the primary
# key.
RESUME_SCHEDULE = """
UPDATE skipqueue_schedule
SET paused_at = NULL,
    paused_by = '',
    next_run_at = to_timestamp(%(next)s::float8),
    fire_at = to_timestamp(%(next)s::float8)
WHERE id = %(id)s AND paused_at IS NOT NULL
RETURNING name
"""


def resume(store: Store, schedule_id: int, *, by: str = "") -> bool:
    """Resume a schedule, without the times that passed during the pause. Return whether it was paused."""
    with transaction.atomic(using=store.alias):
        schedule = _locked_schedule(store, schedule_id)
        resumed_names = store.rows(RESUME_SCHEDULE, {"id": schedule_id, **_next_time(schedule)}) if schedule else []
    for (name,) in resumed_names:
        store.send(ScheduleResumed(store.alias, name, noted(by, "")["by"]))
        return True
    return False


# Sent by run_now, which has locked the row. Writes the job that it has enqueued. Index: the primary key.
NOTE_RUN = joined(
    """
UPDATE skipqueue_schedule
SET last_run_at = statement_timestamp(),
    last_job_id = %(job_id)s,
    earlier_job_ids = (array_remove(last_job_id || earlier_job_ids, NULL))[1:4],
    failing_since = {failing_since}
WHERE id = %(id)s
""",
    failing_since=FAILING_SINCE_RUN,
)


def run_now(store: Store, schedule_id: int) -> int:
    """Enqueue a job of the schedule now, even if it is paused, and return the job's id. The next time does not change.

    Raises `SkipQueueError` if the job cannot be enqueued, with secrets masked. Like `.defer()`, this may run code of
    the project.
    """
    with transaction.atomic(using=store.alias):
        schedule = _locked_schedule(store, schedule_id)
        if schedule is None:
            raise InvalidOption("This schedule no longer exists.")
        last_job_id = schedule.last_job_id
        if schedule.overlap == "skip" and last_job_id is not None and is_unfinished(store, last_job_id):
            raise InvalidOption(
                f"The last job, {last_job_id}, is still unfinished, and this schedule does not overlap jobs."
            )
        try:
            inserted = _enqueue_now(store, schedule)
        except Error:  # an error of the database
            raise
        except Exception as error:  # the project's code, or a row edited by hand, may raise anything
            kind = type(error) if isinstance(error, SkipQueueError) else InvalidOption
            raise kind(error_text(schedule, error)) from None
        store.execute(NOTE_RUN, {"id": schedule_id, "job_id": inserted.id})
        return inserted.id


def _enqueue_now(store: Store, schedule: DueSchedule) -> EnqueuedJob:
    args, kwargs = decode(schedule.args), decode(schedule.kwargs)
    check_call(args, kwargs)
    task = known_task(schedule.task)
    call = task.encoded(args, kwargs)
    spec = spec_at(task.spec(), schedule, instant(schedule.now), jitter=0.0)
    inserted = new_job(store, store.enqueue, spec, call)
    if inserted is None:
        raise InvalidOption(f"Another job holds the unique key {call.unique_key!r}.")
    return inserted


# Sent by plan_again, which has locked the row. Writes the next time. Index: the primary key.
PLAN_SCHEDULE = """
UPDATE skipqueue_schedule
SET next_run_at = to_timestamp(%(next)s::float8), fire_at = to_timestamp(%(next)s::float8), error = ''
WHERE id = %(id)s
"""


def plan_again(store: Store, schedule_id: int) -> datetime | None:
    """Write and return the next time of an edited schedule. Raises `InvalidOption` if its times are not valid."""
    with transaction.atomic(using=store.alias):
        schedule = _locked_schedule(store, schedule_id)
        next_time = None if schedule is None else schedule.timetable.first(instant(schedule.now))
        store.execute(PLAN_SCHEDULE, {"id": schedule_id, "next": next_time and next_time.timestamp()})
        return next_time


# Sent by try_again. Clears the error, so that a supervisor fires the schedule at its next time. Index: the primary key.
TRY_SCHEDULE_AGAIN = "UPDATE skipqueue_schedule SET fire_at = next_run_at, error = '' WHERE id = %(id)s"


def try_again(store: Store, schedule_id: int) -> None:
    """Clear the error of a schedule that was edited, so that a supervisor tries it again. Its times do not change."""
    store.execute(TRY_SCHEDULE_AGAIN, {"id": schedule_id})


# Sent by resume, run_now, plan_again. Returns the schedule, in the columns of DUE_SCHEDULE. Index: the primary key.
LOCK_SCHEDULE = """
SELECT
    id, name, task, args::text, kwargs::text, cron, extract(epoch FROM "interval")::float8, timezone, catch_up, overlap,
    jitter, extract(epoch FROM next_run_at)::float8, last_job_id, error,
    extract(epoch FROM statement_timestamp())::float8
FROM skipqueue_schedule
WHERE id = %(id)s
FOR NO KEY UPDATE
"""


def _locked_schedule(store: Store, schedule_id: int) -> DueSchedule | None:
    return next((DueSchedule(*row) for row in store.rows(LOCK_SCHEDULE, {"id": schedule_id})), None)


def _next_time(schedule: DueSchedule) -> dict[str, Any]:
    """Return the next time after now; the stored time if the row's times are not valid."""
    now = instant(schedule.now)
    try:
        if schedule.planned_at is None:
            next_time = schedule.timetable.first(now)
        elif schedule.planned > now:
            next_time = schedule.planned
        else:
            next_time = schedule.timetable.after(now, planned=schedule.planned)
    except SkipQueueError:
        return {"next": schedule.planned_at}
    return {"next": next_time and next_time.timestamp()}

"""Do what operators ask for: each function is one verb, such as `retry`, for a batch of jobs.

If the status of a job does not allow the verb, the job stays unchanged. The statement of a verb also records in the row
what was done, by whom and why: `operations` holds the newest 50 records. Each function returns the ids of the changed
jobs, with the new status of each. The admin, the command line and the methods of `Job` call these functions.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from ..events.events import JobsOperated
from ..exceptions import UniqueKeyDeadlock
from ..values.bounds import check_columns, check_run_after
from ..values.codec import shorten
from ..values.outcomes import Delay, checked_seconds
from .fragments import CALL_COLUMNS, DUE_AT, PIECES, entering, joined, recording
from .notify import GATES_PAYLOAD, notify_supervisors, wake, wake_supervisors
from .parameters import noted
from .queues import CHANGE_QUEUE, columns_of_queue
from .unique_keys import explained_deadlock, unique_keys

if TYPE_CHECKING:
    from .store import Store

# operators → the failed and discarded jobs that were put back into their queues, with a fresh set of attempts: at once,
# or each at a random time within `over` seconds. The array is a subquery, so that the planner does not see its length:
# a planner that knows the length reads a small table whole. Only an INSERT writes rows in the order of its SELECT. Each
# row that this INSERT writes conflicts with the locked row that it was read from, so PostgreSQL updates the locked row.
# Parts fill the places. Index: the primary key.
RETRY = joined(
    """
WITH {named}chosen AS MATERIALIZED (
    SELECT id, queue_name, task, args, kwargs, status, finished_at, {order} AS place
    FROM skipqueue_job
    WHERE
        id = ANY ({ids})
        AND status IN ('failed', 'discarded')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
INSERT INTO skipqueue_job AS job (id, queue_name, task, args, kwargs, status, finished_at)
SELECT id, queue_name, task, args, kwargs, status, finished_at FROM chosen ORDER BY place
ON CONFLICT (id) DO UPDATE
SET status = {status},
    gate = {gate},
    lease = job.lease + 1,
    attempts = 0,
    started_at = {started_at},
    run_after = statement_timestamp() + make_interval(secs => %(over)s::float8 * {spread}),
    finished_at = NULL,
    deaths = NULL,
    unknown_since = NULL,
    operations = {operations}
RETURNING job.id, job.queue_name, job.status
""",
    **entering(column="job.{}", run_after="statement_timestamp() + make_interval(secs => %(over)s::float8)"),
    named=PIECES["retry_named"],
    ids=PIECES["retry_ids"],
    order=PIECES["retry_order"],
    started_at=PIECES["retry_started_at"],
    spread=PIECES["retry_spread"],
    operations=recording("retry"),
)

# Each statement below changes the jobs with these ids for which the condition `which` holds, in the order of their ids,
# and skips the rows that other transactions have locked. If a worker claims a job at the same moment, it keeps the job,
# because the row is locked or the job runs. Index: the primary key.
_CHANGE = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND {which}
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET {columns},
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
"""

_WAITS = """finished_at IS NULL
        AND status <> 'running'"""

# operators → the waiting jobs that were discarded.
DISCARD = joined(
    _CHANGE,
    which=joined(
        """(
            (finished_at IS NULL AND status <> 'running'){also}
        )""",
        also=PIECES["discard_also"],
    ),
    columns="""status = 'discarded',
    gate = NULL,
    lease = job.lease + 1,
    finished_at = statement_timestamp(),
    last_error = CASE WHEN job.status = 'failed' THEN job.last_error ELSE %(last_error)s END""",
    operations=recording("discard"),
)

# operators → the unfinished jobs that were cancelled: discarded, even if they run. Raising the lease takes a running
# job from its worker.
CANCEL = joined(
    _CHANGE,
    which="finished_at IS NULL",
    columns="""status = 'discarded',
    gate = NULL,
    lease = job.lease + 1,
    locked_at = NULL,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s""",
    operations=recording("cancel"),
)

# operators → the scheduled jobs, retries among them, that have passed the time gate. An overdue job keeps its due time,
# and so its position in the queue.
RUN_NOW = joined(
    _CHANGE,
    which="status = 'scheduled'",
    columns=joined(
        """status = {status},
    gate = {gate},
    run_after = LEAST(job.run_after, statement_timestamp())""",
        **entering(column="job.{}", past="time"),
    ),
    operations=recording("run_now"),
)

# operators → the waiting jobs that are now due later. Skips jobs that are due later anyway.
POSTPONE = joined(
    _CHANGE,
    which=f"{_WAITS}\n        AND run_after < {DUE_AT}",
    columns=f"""status = 'scheduled',
    gate = NULL,
    run_after = {DUE_AT}""",
    operations=recording("postpone"),
)

# operators → the waiting jobs that are now due at another time, earlier or later.
RESCHEDULE = joined(
    _CHANGE,
    which=_WAITS,
    columns=joined(
        """status = {status},
    gate = {gate},
    run_after = {due}""",
        due=DUE_AT,
        **entering(column="job.{}", run_after=DUE_AT),
    ),
    operations=recording("reschedule", more={"from": "job.run_after", "to": DUE_AT}),
)

# operators → the waiting jobs that now have another priority.
CHANGE_PRIORITY = joined(
    _CHANGE,
    which=f"{_WAITS}\n        AND priority <> %(priority)s::smallint",
    columns="priority = %(priority)s::smallint",
    operations=recording("change_priority", more={"from": "job.priority", "to": "%(priority)s::smallint"}),
)

# run_again → the copies of jobs, each with who made the copy, why, and of which job. Sent in the transaction that
# inserts the copies. Index: the primary key.
NOTE_COPIES = joined(
    """
UPDATE skipqueue_job AS job
SET operations = {operations}
WHERE id = ANY (%(ids)s::bigint[])
RETURNING id
""",
    operations=recording("run_again", more={"job": "(%(originals)s::jsonb ->> job.id::text)::bigint"}),
)


def retry(store: "Store", ids: Iterable[int], *, over: Delay = 0.0, by: str = "", reason: str = "") -> dict[int, str]:
    """Put failed and discarded jobs back into their queues: at once, or each at a random time within `over`.

    A job in another status stays unchanged, and so does a job whose unique key another job holds. Raises
    `UniqueKeyDeadlock` if the caller's transaction and another transaction wait for each other.
    """
    values: dict[str, Any] = {"ids": list(ids), "over": checked_seconds("over", over), **noted(by, reason)}
    for _ in range(10):
        try:
            with explained_deadlock(), transaction.atomic(using=store.alias):
                rows = store.rows(RETRY, values)
        except UniqueKeyDeadlock:
            if store.connection.in_atomic_block:  # it may hold the key that the other transaction waits for
                raise
            continue
        except IntegrityError:
            # A finished job still has one of the unique keys, or another job took one in between: the next try
            # skips that job.
            unique_keys().free_unique_keys(store, unique_keys().unique_keys_of(store, values["ids"]))
            continue
        if rows:
            wake_supervisors(store, [values["over"] / len(rows)])
        return _operated(store, "retry", rows, by, reason)
    raise IntegrityError("The unique keys of these jobs are being taken by others again and again; retry them singly.")


def discard(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Finish jobs that wait without running them; also a failed job that other jobs of its key wait for."""
    return _change(store, "discard", DISCARD, ids, by, reason, done="Discarded")


def cancel(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
    return _change(store, "cancel", CANCEL, ids, by, reason, done="Cancelled")


def run_now(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Make scheduled jobs, retries among them, claimable now. The next attempt keeps its number."""
    return _change(store, "run_now", RUN_NOW, ids, by, reason)


def postpone(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Move the due time of waiting jobs to `run_after`; a timedelta counts from now.

    A job in another status stays unchanged, and so does one that is due later anyway. Raises `InvalidOption` for a
    time that the column cannot store.
    """
    return _change(store, "postpone", POSTPONE, ids, by, reason, **_due(run_after))


def reschedule(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Set the due time of waiting jobs, to an earlier or a later one; a timedelta counts from now.

    A job in another status stays unchanged. Raises `InvalidOption` for a time that the column cannot store.
    """
    return _change(store, "reschedule", RESCHEDULE, ids, by, reason, **_due(run_after))


def change_queue(
    store: "Store", ids: Iterable[int], queue_name: str, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Put waiting jobs into another queue. A job that is in it already, or in another status, stays unchanged.

    Raises `InvalidOption` for a name that no queue can have.
    """
    check_columns({"queue_name": queue_name})
    columns = {**dict.fromkeys(CALL_COLUMNS), **columns_of_queue(queue_name, ())}
    return _change(store, "change_queue", CHANGE_QUEUE, ids, by, reason, queue_name=queue_name, **columns)


def change_priority(
    store: "Store", ids: Iterable[int], priority: int, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Give waiting jobs another priority. A job that has it already, or in another status, stays unchanged.

    Raises `InvalidOption` for a number that is no priority.
    """
    check_columns({"priority": priority})
    return _change(store, "change_priority", CHANGE_PRIORITY, ids, by, reason, priority=priority)


def note_copies(store: "Store", copies: Mapping[int, int], *, by: str = "", reason: str = "") -> None:
    """Record in new jobs of which jobs they are copies. `copies`: the id of each copy, by the id of its original."""
    originals = {copy: job for job, copy in copies.items()}
    values = {"ids": list(originals), "originals": json.dumps(originals), **noted(by, reason)}
    store.rows(NOTE_COPIES, values)
    store.send(JobsOperated(store.alias, "run_again", list(originals), by, reason))


def _change(
    store: "Store", verb: str, statement: str, ids: Iterable[int], by: str, reason: str, done: str = "", **values: Any
) -> dict[int, str]:
    """Send the statement of a verb. `done`: the beginning of the jobs' `last_error`, if the verb sets it."""
    recorded = noted(by, reason)
    if done:
        values["last_error"] = _reason_line(done, **recorded)
    rows = store.rows(statement, {"ids": list(ids), **recorded, **values})
    if rows:
        wake_supervisors(store, [values.get("delay", 0.0)])
    return _operated(store, verb, rows, by, reason)


def _operated(store: "Store", verb: str, rows: list[tuple[Any, ...]], by: str, reason: str) -> dict[int, str]:
    """Notify the workers that can claim these jobs, and send the event. Returns the ids, with the new status."""
    wake(store, (queue_name for _, queue_name, status in rows if status == "queued"))
    if any(status == "blocked" for _, _, status in rows):
        notify_supervisors(store, GATES_PAYLOAD)
    changed = {id: status for id, _, status in rows}
    if changed:
        store.send(JobsOperated(store.alias, verb, list(changed), by, reason))
    return changed


def _due(run_after: datetime | timedelta) -> dict[str, Any]:
    """The parameters of a due time. Raises `InvalidOption` for one that the column cannot store."""
    check_run_after(run_after)
    return {
        "run_after": run_after if isinstance(run_after, datetime) else None,
        "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0,
    }


def _reason_line(done: str, by: str, reason: str) -> str:
    if not by:
        return reason or f"{done} by hand."
    return shorten(f"{done} by {by}: {reason}" if reason else f"{done} by {by}.")

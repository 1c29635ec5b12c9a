"""The verbs of operators. A job whose status does not allow the verb stays unchanged.

Each verb changes one batch, in one statement that also records in the row what was done, by whom and why: `operations`
holds the newest 50. The statement returns id, queue and new status of the jobs that it changed.

Used by the admin and by the methods of `Job`. Each verb returns the changed jobs: ids, with the new status.
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
from .fragments import OF_CALL, PIECES, entering, joined, recording
from .notify import LIMITS_PAYLOAD, notify_supervisors, wake, wake_supervisors
from .parameters import noted
from .queues import CHANGE_QUEUE, columns_of_queue
from .unique_keys import explained_deadlock, unique_keys

if TYPE_CHECKING:
    from .store import Store

_DUE = "COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))"
"""The new due time: a delay counts from now."""

# operators → the failed and discarded jobs that were put back into their queues, with a fresh set of attempts: at once,
# or each at a random time within `over` seconds. The array is a subquery, so that the planner does not see its length:
# with that, it reads a small table whole. Only an INSERT writes its rows in the order of its SELECT: here each of them
# meets the row that it was read from, which is locked, and so is updated. The parts with unique keys and with sequences
# fill its places. Index: the primary key.
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

# operators → the waiting jobs that were discarded. Index: the primary key.
DISCARD = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND (
            (finished_at IS NULL AND status <> 'running'){also}
        )
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    gate = NULL,
    lease = job.lease + 1,
    finished_at = statement_timestamp(),
    last_error = CASE WHEN job.status = 'failed' THEN job.last_error ELSE %(last_error)s END,
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    also=PIECES["discard_also"],
    operations=recording("discard"),
)

# operators → the unfinished jobs that were cancelled: discarded, even if they run. Raising the lease takes a running
# job from its worker. Index: the primary key.
CANCEL = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    gate = NULL,
    lease = job.lease + 1,
    locked_at = NULL,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s,
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    operations=recording("cancel"),
)

# operators → the scheduled jobs, retries among them, that have passed the time gate. An overdue job keeps its due time,
# and so its position in the queue. Index: the primary key.
RUN_NOW = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'scheduled'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = {status},
    gate = {gate},
    run_after = LEAST(job.run_after, statement_timestamp()),
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    **entering(column="job.{}", past="time"),
    operations=recording("run_now"),
)

# operators → the waiting jobs that are now due later. A job that is due later anyway stays unchanged. A delay counts
# from now. Index: the primary key.
POSTPONE = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND run_after < COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'scheduled',
    gate = NULL,
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    operations=recording("postpone"),
)

# operators → the waiting jobs that are now due at another time, earlier or later. A delay counts from now. Index: the
# primary key.
RESCHEDULE = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND status <> 'running'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = {status},
    gate = {gate},
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    **entering(column="job.{}", run_after=_DUE),
    operations=recording("reschedule", more={"from": "job.run_after", "to": _DUE}),
)

# operators → the waiting jobs that now have another priority. A worker that claims one of them at the same moment keeps
# it: then the job is locked, or running. Index: the primary key.
CHANGE_PRIORITY = joined(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND priority <> %(priority)s::smallint
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET priority = %(priority)s::smallint,
    operations = {operations}
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    operations=recording("change_priority", more={"from": "job.priority", "to": "%(priority)s::smallint"}),
)

# run_again → the copies of jobs, with who made each of them, why, and of which job. In the transaction that inserts
# them. Index: the primary key.
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

    A job in another status stays unchanged, and so does one whose unique key another job holds. Raises
    `UniqueKeyDeadlock` in a transaction of the caller that waits for another one, which waits for it.
    """
    values = _noted(ids, by, reason) | {"over": checked_seconds("over", over)}
    for _ in range(10):
        try:
            with explained_deadlock(), transaction.atomic(using=store.alias):
                rows = store.rows(RETRY, values)
        except UniqueKeyDeadlock:
            if store.connection.in_atomic_block:  # it may hold the key that the other one waits for
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
    """Finish jobs that wait without running them; also a job that failed and at which a sequence halts."""
    values = _noted(ids, by, reason) | {"last_error": _reason_line("Discarded", by, reason)}
    return _operated(store, "discard", store.rows(DISCARD, values), by, reason)


def cancel(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
    values = _noted(ids, by, reason) | {"last_error": _reason_line("Cancelled", by, reason)}
    return _operated(store, "cancel", store.rows(CANCEL, values), by, reason)


def run_now(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Make scheduled jobs, retries among them, claimable now. The next attempt keeps its number."""
    return _operated(store, "run_now", store.rows(RUN_NOW, _noted(ids, by, reason)), by, reason)


def postpone(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Move the due time of waiting jobs to `run_after`; a timedelta counts from now.

    A job in another status stays unchanged, and so does one that is due later anyway. Raises `InvalidOption` for a
    time that the column cannot store.
    """
    values = _noted(ids, by, reason) | _due(run_after)
    rows = store.rows(POSTPONE, values)
    if rows:
        wake_supervisors(store, [values["delay"]])
    return _operated(store, "postpone", rows, by, reason)


def reschedule(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Set the due time of waiting jobs, to an earlier or a later one; a timedelta counts from now.

    A job in another status stays unchanged. Raises `InvalidOption` for a time that the column cannot store.
    """
    values = _noted(ids, by, reason) | _due(run_after)
    rows = store.rows(RESCHEDULE, values)
    if rows:
        wake_supervisors(store, [values["delay"]])
    return _operated(store, "reschedule", rows, by, reason)


def change_queue(
    store: "Store", ids: Iterable[int], queue_name: str, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Put waiting jobs into another queue. A job that is in it already, or in another status, stays unchanged.

    Raises `InvalidOption` for a name that no queue can have.
    """
    check_columns({"queue_name": queue_name})
    columns = {**dict.fromkeys(OF_CALL), **columns_of_queue(queue_name, ())}
    values = {**_noted(ids, by, reason), **columns, "queue_name": queue_name}
    return _operated(store, "change_queue", store.rows(CHANGE_QUEUE, values), by, reason)


def change_priority(
    store: "Store", ids: Iterable[int], priority: int, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Give waiting jobs another priority. A job that has it already, or in another status, stays unchanged.

    Raises `InvalidOption` for a number that is no priority.
    """
    check_columns({"priority": priority})
    values = _noted(ids, by, reason) | {"priority": priority}
    return _operated(store, "change_priority", store.rows(CHANGE_PRIORITY, values), by, reason)


def note_copies(store: "Store", copies: Mapping[int, int], *, by: str = "", reason: str = "") -> None:
    """Record in new jobs of which jobs they are copies. copies: the ids of jobs, each with that of its copy."""
    originals = {copy: job for job, copy in copies.items()}
    store.rows(NOTE_COPIES, {**_noted(originals, by, reason), "originals": json.dumps(originals)})
    store.send(JobsOperated(store.alias, "run_again", list(originals), by, reason))


def _operated(store: "Store", verb: str, rows: list[tuple[Any, ...]], by: str, reason: str) -> dict[int, str]:
    """Notify the workers that can claim these jobs, and send the event. Returns the ids, with the new status."""
    wake(store, (queue_name for _, queue_name, status in rows if status == "queued"))
    if any(status == "blocked" for _, _, status in rows):
        notify_supervisors(store, LIMITS_PAYLOAD)
    changed = {id: status for id, _, status in rows}
    if changed:
        store.send(JobsOperated(store.alias, verb, list(changed), by, reason))
    return changed


def _noted(ids: Iterable[int], by: str, reason: str) -> dict[str, Any]:
    return {"ids": list(ids), **noted(by, reason)}


def _due(run_after: datetime | timedelta) -> dict[str, Any]:
    """The parameters of a due time. Raises `InvalidOption` for one that the column cannot store."""
    check_run_after(run_after)
    return {
        "run_after": run_after if isinstance(run_after, datetime) else None,
        "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0,
    }


def _reason_line(done: str, by: str, reason: str) -> str:
    if not by:
        return shorten(reason) or f"{done} by hand."
    return shorten(f"{done} by {by}: {reason}" if reason else f"{done} by {by}.")

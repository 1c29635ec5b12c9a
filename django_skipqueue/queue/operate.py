"""Operations that people do on jobs, such as `retry` and `cancel`. Each function changes a batch of jobs.

If the status of a job does not allow the operation, the job stays unchanged. Each statement also records in the column
`operations` what was done, by whom and why; the column keeps the newest 50 records. Each function returns the ids of
the changed jobs, with the new status of each job. The admin, the command line and the methods of `Job` call these
functions.
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
from ..values.part import installed_parts
from .fragments import CALL_COLUMNS, DUE_AT, PIECES, entering, joined, recording
from .notify import GATES_PAYLOAD, notify_supervisors, wake, wake_supervisors
from .parameters import noted
from .queues import CHANGE_QUEUE, columns_of_queue
from .unique_keys import explained_deadlock, unique_keys

if TYPE_CHECKING:
    from .store import Store

# Sent by operators. Puts failed and discarded jobs back into their queues with a fresh set of attempts, and returns
# them. Each job is due at once, or at a random time within `over` seconds. Parts fill the placeholders. Index: the
# primary key.
# The array of ids is a subquery, so that the planner does not see its length. Otherwise it would read a small table
# whole. The statement is an INSERT, because only an INSERT writes rows in the order of its SELECT. Each of its rows
# conflicts with the locked row from which it was read, so that PostgreSQL updates the locked row.
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

# The form of the statements below. It changes the jobs with these ids for which the condition `which` is true, in the
# order of their ids, and skips rows that other transactions have locked. If a worker claims a job at the same moment,
# the worker keeps the job, because the row is locked or the job runs. Index: the primary key.
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

# Sent by operators. Discards waiting jobs, and returns them.
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

# Sent by operators. Cancels unfinished jobs, and returns them. They are discarded even if they run, because the new
# lease number takes a running job from its worker.
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

# Sent by operators. Lets scheduled jobs, including retries, pass the time gate now, and returns them. An overdue job
# keeps its due time, and so its position in the queue.
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

# Sent by operators. Makes waiting jobs due later, and returns them. Skips jobs that are already due at a later time.
POSTPONE = joined(
    _CHANGE,
    which=f"{_WAITS}\n        AND run_after < {DUE_AT}",
    columns=f"""status = 'scheduled',
    gate = NULL,
    run_after = {DUE_AT}""",
    operations=recording("postpone"),
)

# Sent by operators. Makes waiting jobs due at another time, earlier or later, and returns them.
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
    operations=recording("reschedule", further_keys={"from": "job.run_after", "to": DUE_AT}),
)

# Sent by operators. Gives waiting jobs another priority, and returns them.
CHANGE_PRIORITY = joined(
    _CHANGE,
    which=f"{_WAITS}\n        AND priority <> %(priority)s::smallint",
    columns="priority = %(priority)s::smallint",
    operations=recording("change_priority", further_keys={"from": "job.priority", "to": "%(priority)s::smallint"}),
)

# Sent by run_again, in the transaction that inserts copies of jobs. Records in each copy who made the copy, why, and of
# which job. Returns the copies. Index: the primary key.
NOTE_COPIES = joined(
    """
UPDATE skipqueue_job AS job
SET operations = {operations}
WHERE id = ANY (%(ids)s::bigint[])
RETURNING id
""",
    operations=recording("run_again", further_keys={"job": "(%(originals)s::jsonb ->> job.id::text)::bigint"}),
)


def retry(store: "Store", ids: Iterable[int], *, over: Delay = 0.0, by: str = "", reason: str = "") -> dict[int, str]:
    """Put failed and discarded jobs back into their queues: at once, or each at a random time within `over`.

    A job in another status, or whose unique key another job holds, stays unchanged. Raises `UniqueKeyDeadlock` if the
    caller's transaction and another transaction wait for each other.
    """
    values: dict[str, Any] = {"ids": list(ids), "over": checked_seconds("over", over), **noted(by, reason)}
    for _ in range(10):  # other transactions may take the unique keys at the same moment
        try:
            with explained_deadlock():
                rows = _change_rows(store, "retry", RETRY, values)
        except UniqueKeyDeadlock:
            if store.connection.in_atomic_block:  # the caller must roll back, because its transaction may hold a key
                raise
            continue
        except IntegrityError:
            # A finished job still has one of the unique keys, or another job has taken one just now. The next try
            # skips the job with this key.
            unique_keys().free_unique_keys(store, unique_keys().unique_keys_of(store, values["ids"]))
            continue
        if rows:  # the first of these jobs is due after about this time
            wake_supervisors(store, [values["over"] / len(rows)])
        return _announce(store, "retry", rows, by, reason)
    raise IntegrityError("The unique keys of these jobs are being taken by others again and again; retry them singly.")


def discard(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Finish waiting jobs without running them. A failed job for which other jobs of its key wait is also discarded."""
    return _change(store, "discard", DISCARD, ids, by, reason, prefix="Discarded")


def cancel(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
    return _change(store, "cancel", CANCEL, ids, by, reason, prefix="Cancelled")


def run_now(store: "Store", ids: Iterable[int], *, by: str = "", reason: str = "") -> dict[int, str]:
    """Make scheduled jobs, including retries, due now. The next attempt keeps its number."""
    return _change(store, "run_now", RUN_NOW, ids, by, reason)


def postpone(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Move the due time of waiting jobs to `run_after`; a timedelta counts from now.

    A job in another status, or that is already due at a later time, stays unchanged. Raises `InvalidOption` for a time
    that the column cannot store.
    """
    return _change(store, "postpone", POSTPONE, ids, by, reason, **_due_values(run_after))


def reschedule(
    store: "Store", ids: Iterable[int], run_after: datetime | timedelta, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Set the due time of waiting jobs to an earlier or a later time; a timedelta counts from now.

    A job in another status stays unchanged. Raises `InvalidOption` for a time that the column cannot store.
    """
    return _change(store, "reschedule", RESCHEDULE, ids, by, reason, **_due_values(run_after))


def change_queue(
    store: "Store", ids: Iterable[int], queue_name: str, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Put waiting jobs into another queue. A job in this queue, or in another status, stays unchanged.

    Raises `InvalidOption` if the queue name is not valid.
    """
    check_columns({"queue_name": queue_name})
    columns = {**dict.fromkeys(CALL_COLUMNS), **columns_of_queue(queue_name, ())}
    return _change(store, "change_queue", CHANGE_QUEUE, ids, by, reason, queue_name=queue_name, **columns)


def change_priority(
    store: "Store", ids: Iterable[int], priority: int, *, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Give waiting jobs another priority. A job with this priority, or in another status, stays unchanged.

    Raises `InvalidOption` if the priority is not valid.
    """
    check_columns({"priority": priority})
    return _change(store, "change_priority", CHANGE_PRIORITY, ids, by, reason, priority=priority)


def note_copies(store: "Store", copies: Mapping[int, int], *, by: str = "", reason: str = "") -> None:
    """Record in copies of jobs which jobs they are copies of. `copies`: the id of each copy, by the original's id."""
    originals = {copy: original for original, copy in copies.items()}
    values = {"ids": list(originals), "originals": json.dumps(originals), **noted(by, reason)}
    store.rows(NOTE_COPIES, values)
    store.send(JobsOperated(store.alias, "run_again", list(originals), by, reason))


def _change(
    store: "Store", verb: str, statement: str, ids: Iterable[int], by: str, reason: str, prefix: str = "", **values: Any
) -> dict[int, str]:
    """Send the statement of a verb. `prefix`: how the jobs' `last_error` begins, if the verb sets it."""
    operator = noted(by, reason)
    if prefix:
        values["last_error"] = _reason_line(prefix, **operator)
    rows = _change_rows(store, verb, statement, {"ids": list(ids), **operator, **values})
    if rows:
        wake_supervisors(store, [values.get("delay", 0.0)])
    return _announce(store, verb, rows, by, reason)


def _change_rows(store: "Store", verb: str, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Change jobs, and the rows that parts keep of these jobs, in one transaction. Returns the statement's rows."""
    with transaction.atomic(using=store.alias):
        rows = store.rows(statement, values)
        for part in installed_parts() if rows else ():
            if part.on_operate:
                part.on_operate(store, verb, [id for id, *_ in rows])
    return rows


def _announce(store: "Store", verb: str, rows: list[tuple[Any, ...]], by: str, reason: str) -> dict[int, str]:
    """Notify the workers that can claim the changed jobs, and send the event. Returns their ids and new statuses."""
    wake(store, (queue_name for _, queue_name, status in rows if status == "queued"))
    if any(status == "blocked" for _, _, status in rows):
        notify_supervisors(store, GATES_PAYLOAD)
    changed = {id: status for id, _, status in rows}
    if changed:
        store.send(JobsOperated(store.alias, verb, list(changed), by, reason))
    return changed


def _due_values(run_after: datetime | timedelta) -> dict[str, Any]:
    """The SQL parameters for a due time. Raises `InvalidOption` for a time that the column cannot store."""
    check_run_after(run_after)
    return {
        "run_after": run_after if isinstance(run_after, datetime) else None,
        "delay": run_after.total_seconds() if isinstance(run_after, timedelta) else 0.0,
    }


def _reason_line(action: str, by: str, reason: str) -> str:
    if not by:
        return reason or f"{action} by hand."
    return shorten(f"{action} by {by}: {reason}" if reason else f"{action} by {by}.")

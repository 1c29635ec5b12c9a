"""Write the outcomes of attempts. Only the process that holds the lease of a job can write the job's outcome."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, transaction

from ..events.events import OutcomeRefused
from ..values.outcomes import Outcome, Settlement
from ..values.part import installed_parts
from ..values.records import LeaseRef, QueuePosition
from .claim import CLAIM
from .fragments import GATE_KEY, PIECES, entering, joined
from .gates import key_gates
from .notify import notify_of_keys, wake, wake_supervisors
from .parameters import (
    ExchangeResult,
    Statement,
    as_array,
    claim_values,
    in_lock_order,
    is_refused,
    leases_as_values,
    pipelined,
    settlements_as_values,
    storable_failure,
    without_detail,
)

if TYPE_CHECKING:
    from .store import Store

# Sent by `settle` and by workers. Writes outcomes, and returns the job id and the lease of each written outcome, with a
# number that a part may ask for, such as the batch id. An outcome whose lease is no longer valid matches no row.
# Writing an outcome ends the lease, so that a second outcome of the attempt matches no row either. Index: the primary
# key, in the order of the arrays.
# `started` and `ended` are how many microseconds ago the attempt began and ended, by the worker's monotonic clock. NULL
# stands for the time of the claim in `started`, and for now in `ended`. The column `errors` keeps the newest 10 errors:
# `errors - 0` is the list without its oldest error. `notes` has the progress and the log of the attempt, if it noted
# any; see NOTE_ATTEMPTS. An array that is shorter than `ids` is filled up with NULL. In most
# batches every outcome is a plain completion, so that only ids, leases and times are sent. If the values came as JSON,
# the statement would take an eighth longer.
# The WHERE has no condition on the status. With it, the planner might read every running and dead entry of the recover
# index instead, which takes 55 µs per job instead of 8 µs.
_SETTLE = """
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN {status}
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    gate = CASE WHEN outcome.status = 'scheduled' THEN {gate} END,
    started_at = COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at),
    finished_at = CASE
        WHEN outcome.status IS DISTINCT FROM 'scheduled'
        THEN statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond'
    END,
    result = outcome.result,
    last_error = COALESCE(outcome.last_error, job.last_error),
    errors = CASE
        WHEN outcome.error IS NULL THEN job.errors
        ELSE (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
            || (
                outcome.error || jsonb_build_object(
                    'at', statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond',
                    'worker_id', job.locked_by
                )
            )
    END,
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
            )
        )
    END,{snoozes}
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease{only}
RETURNING job.id, outcome.lease, {settled}
"""

_PLACEHOLDERS = {
    **entering(column="job.{}", run_after="statement_timestamp() + make_interval(secs => outcome.delay)"),
    "settled": PIECES["settled"],
}

SETTLE = joined(_SETTLE, **_PLACEHOLDERS, snoozes="", only="")

# A further column that SETTLE_SNOOZES sets: it records each snooze in `operations`. Successive snoozes share one record
# with their number, so that they do not displace the records of operators. `operations -> 49` is the fiftieth record,
# and there are never more. `operations - -1` is the list without its last record, `operations - 0` without its first.
_SNOOZES = """
    operations = CASE
        WHEN outcome.refund IS NULL OR outcome.refund = 0 OR outcome.is_unknown THEN job.operations
        ELSE COALESCE(
            CASE
                WHEN job.operations -> -1 ->> 'verb' = 'snooze' THEN job.operations - -1
                WHEN job.operations -> 49 IS NOT NULL THEN job.operations - 0
                ELSE job.operations
            END,
            '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'snooze', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts,
            'since', statement_timestamp() - outcome.started * interval '1 microsecond',
            'times', 1 + CASE
                WHEN
                    job.operations -> -1 ->> 'verb' = 'snooze'
                    AND jsonb_typeof(job.operations -> -1 -> 'times') = 'number'
                THEN (job.operations -> -1 ->> 'times')::numeric
                ELSE 0
            END
        )
    END,"""

# Sent instead of SETTLE for a batch with a snooze, because recording snoozes takes time. Returns the columns of SETTLE.
# Index: the primary key.
SETTLE_SNOOZES = joined(_SETTLE, **_PLACEHOLDERS, snoozes=_SNOOZES, only="")

# Sent after SETTLE, if some of the jobs are due again at once. Returns the queue of each such job, and the gate and the
# key for which it waits, if any. The array is a subquery, so that the planner does not see its length. Index: the
# primary key.
QUEUES_OF = joined(
    """
SELECT job.queue_name, job.gate, {key} FROM skipqueue_job AS job
WHERE
    job.id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    AND job.status IN ('queued', 'blocked')
""",
    key=GATE_KEY,
)

# Sent by workers. Appends the attempt's error to each job that was cancelled while it ran, because the traceback shows
# where the task was interrupted. Returns the ids of the changed jobs. The cancel raised the lease by 1. If the lease
# has any other value, another worker has claimed the job since, and nothing is appended. If an error is sent twice, it
# is appended once. Index: the primary key.
_APPEND_CANCELLED_ERRORS = """
WITH cancelled AS MATERIALIZED (
    SELECT job.id, attempt.error
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(errors)s::text[]::jsonb[]))
            AS attempt (id, lease, error)
        JOIN skipqueue_job AS job ON job.id = attempt.id AND job.lease = attempt.lease + 1
    WHERE job.status = 'discarded' AND (job.errors -> -1 @> attempt.error) IS NOT TRUE
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET errors = (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
    || (
        (SELECT error FROM cancelled WHERE cancelled.id = job.id)
        || jsonb_build_object('at', statement_timestamp(), 'worker_id', job.locked_by)
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM cancelled)){only}
RETURNING job.id
"""

APPEND_CANCELLED_ERRORS = joined(_APPEND_CANCELLED_ERRORS, only="")

SettledRow = tuple[int, int, int | None]
"""The id and the lease of a job whose outcome was written, and the number that `PIECES["settled"]` returns."""


def settle(store: "Store", settlements: Iterable[Settlement], *, raises: bool = False) -> set[int]:
    """Write many outcomes in one statement. Returns the ids of the jobs whose lease was valid.

    If PostgreSQL refuses an outcome, all other outcomes are still written, and the job of the refused outcome fails
    with the database's error. If PostgreSQL refuses this failure as well, the job stays unchanged, and an error is
    logged. With `raises`, a refusal is raised instead, and the caller must roll back its transaction.
    """
    batch = in_lock_order(settlements)
    written = store.rows(*_statement(store, batch)) if raises else _settle(store, batch, {})
    _wake_for(store, batch)
    for part in installed_parts() if written else ():
        if part.after_settle:
            part.after_settle(store, list(written))
    return {id for id, _, _ in written}


def exchange(  # noqa: PLR0913 (one round trip does all of this)
    store: "Store",
    settlements: Iterable[Settlement],
    *,
    queue_names: Sequence[str],
    limit: int,
    worker_id: str,
    after: Mapping[str, QueuePosition] | None = None,
    meanwhile: Callable[[], object] | None = None,
    between: Sequence[Statement | None] = (),
    claim: str | None = None,
) -> ExchangeResult:
    """Settle and claim in one round trip and one transaction, on a connection in autocommit.

    after: for each queue, the position after which to search for jobs; by default the front of the queue.
    meanwhile: called at most once, while PostgreSQL runs the statements. Not called if sending a statement fails.
    between: statements that run after the settle and before the claim. The result has their rows.
    claim: a statement to send instead of CLAIM, with the same parameters and columns.

    If PostgreSQL refuses an outcome, the outcomes are written as `settle` does it, and the other statements are sent
    afterwards.
    """
    batch = in_lock_order(settlements)
    settle_statement = _statement(store, batch) if batch else None
    values = claim_values(queue_names, after=after or {}, limit=limit, worker_id=worker_id)
    claim_statement = (claim or CLAIM, values) if limit > 0 and queue_names else None
    connection = store.connection
    connection.ensure_connection()
    sent = time.monotonic()
    try:
        with connection.wrap_database_errors:
            settled, *rows, claimed = pipelined(
                connection.connection, [settle_statement, *between, claim_statement], meanwhile
            )
    except DatabaseError as error:
        if not is_refused(error) or not batch:
            raise
        refused: dict[LeaseRef, Outcome] = {}
        written = _settle(store, batch, refused)
        arguments: dict[str, Any] = {"queue_names": queue_names, "limit": limit, "worker_id": worker_id, "after": after}
        result = store.exchange([], between=between, claim=claim, **arguments)
        result = replace(result, settled_rows=list(written), refused=refused)
    else:
        result = ExchangeResult(settled, claimed, queue_names, sent, between=rows)
    if settle_statement and "scheduled" in settle_statement[1]["statuses"]:
        with suppress(DatabaseError):  # an error here must not lose the result of the exchange
            _wake_for(store, batch)
    return result


def append_cancelled_errors(store: "Store", cancelled: Iterable[Settlement]) -> set[int]:
    """Append the errors of attempts to jobs that were cancelled while they ran. Returns the ids of the changed jobs.

    `settle` cannot write these errors, because the cancel has ended the lease.
    """
    failed = [settlement for settlement in in_lock_order(cancelled) if settlement.outcome.error]
    if not failed:
        return set()
    values = leases_as_values((settlement.job_id, settlement.lease) for settlement in failed)
    values["errors"] = [json.dumps(settlement.outcome.error) for settlement in failed]
    statement = store.guarded(APPEND_CANCELLED_ERRORS, values)
    return {id for (id,) in store.rows(*statement)}


def _wake_for(store: "Store", batch: list[Settlement]) -> None:
    """Notify the supervisors of jobs that are due again soon, and the workers of jobs that are due again at once."""
    wake_supervisors(store, (settlement.outcome.delay for settlement in batch))
    ids = [settlement.job_id for settlement in batch if settlement.outcome.next_status == "queued"]
    if ids:
        rows = store.rows(QUEUES_OF, {"ids": as_array(ids)})
        for gate in key_gates():
            notify_of_keys(store, gate.name, [key for _, name, key in rows if name == gate.name])
        wake(store, [queue_name for queue_name, gate, _ in rows if gate is None])


def _settle(store: "Store", batch: list[Settlement], refused: dict[LeaseRef, Outcome]) -> set[SettledRow]:
    """Write a batch of outcomes. If PostgreSQL refuses the batch, write each half of it, to find the refused outcome.

    A refused outcome is replaced by a failure, which is added to `refused`.
    """
    if not batch:
        return set()
    # If the caller has a transaction, a savepoint keeps it usable after a refusal. Workers settle without a
    # transaction.
    savepoint = transaction.atomic(using=store.alias) if store.connection.in_atomic_block else nullcontext()
    try:
        with savepoint:
            return set(store.rows(*_statement(store, batch)))
    except DatabaseError as error:
        if not is_refused(error):
            raise
        if len(batch) == 1:
            job_id, lease, *_ = batch[0]
            if (job_id, lease) in refused:  # even the failure was refused, so every update of this row fails
                store.send(OutcomeRefused(job_id, without_detail(error)))
                return set()
            failure = storable_failure(batch[0], without_detail(error))
            refused[failure.job_id, failure.lease] = failure.outcome
            return _settle(store, [failure], refused)
        middle = len(batch) // 2
        return _settle(store, batch[:middle], refused) | _settle(store, batch[middle:], refused)


def _statement(store: "Store", batch: Sequence[Settlement]) -> tuple[str, dict[str, Any]]:
    values = settlements_as_values(batch)
    return store.guarded(SETTLE_SNOOZES if any(values["refunds"]) else SETTLE, values)

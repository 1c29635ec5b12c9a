"""Insert batches, and finish each batch when all of its jobs are finished: enqueue its callbacks.

There is no counter of unfinished jobs. Statements read from the jobs' rows whether a batch is done.

One transaction finishes a batch: it locks the batch's row, checks again that no unfinished job is left, and inserts the
jobs of the callbacks. So each callback is enqueued exactly once, even if several processes try or one of them dies. An
error in one batch is logged, and does not stop other batches. No code of the project runs here.

`Batch`, workers after a settle, and supervisors use this module.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, Error, transaction

from ...conf import settings
from ...queue.enqueue import new_job
from ...queue.fragments import FINISHED_ROWS, UNFINISHED_LIST, UNFINISHED_ROWS, joined
from ...queue.parameters import BATCH_ROWS, as_array, is_refused
from ...queue.store import Store
from ...values.records import EncodedCall, JobSpec
from .dependencies import admit_dependants
from .events import BatchesFinished, BatchNotFinished, CallbackSkipped
from .values import CALLBACK_JOB, CALLBACK_SKIPPED, FinishedBatch, loaded

# Sent by Batch. Returns the id of the new batch. No process can finish the batch before this transaction commits,
# because no other process sees it until then.
INSERT_BATCH = """
INSERT INTO skipqueue_batch (name, parent_id, callbacks)
VALUES (%(name)s, %(parent_id)s::bigint, %(callbacks)s::jsonb)
RETURNING id
"""

# Sent by Batch, in the transaction that adds jobs to it. Returns the batch's id; no row if the batch is finished. Until
# this transaction ends, no process can finish the batch, but other processes may also add jobs. Index: the primary key.
JOIN_BATCH = """
SELECT id
FROM skipqueue_batch
WHERE id = %(id)s AND finished_at IS NULL
FOR KEY SHARE
"""

# Sent by the supervisor, the worker before a drain ends. Returns the ids of the next open batches after an id. Index:
# open.
OPEN_BATCHES = """
SELECT id
FROM skipqueue_batch
WHERE finished_at IS NULL AND id > %(after)s
ORDER BY id
LIMIT %(limit)s
"""

# The id of an unfinished job of the batch, or NULL. The query reads the newest jobs first, because in a running batch
# the newest jobs still wait. So it does not read the dead index entries of older jobs, which no longer have this
# status.
_UNFINISHED_JOB = """(
        SELECT newest.id
        FROM
            (VALUES {unfinished}) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = {batch}.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    )"""

# The condition that a batch is done. A batch waits for its inner batches on all levels, for their callbacks, and for
# their jobs that were retried. Indexes: batch, inner.
_IS_DONE = joined(
    """
{job_of_batch} IS NULL
AND (
    WITH RECURSIVE inside AS (
        SELECT id, finished_at, callback_ids IS NOT NULL OR failed > 0 OR discarded > 0 AS may_have_unfinished
        FROM skipqueue_batch
        WHERE parent_id = batch.id
        UNION ALL
        SELECT
            deeper.id,
            deeper.finished_at,
            deeper.callback_ids IS NOT NULL OR deeper.failed > 0 OR deeper.discarded > 0
        FROM inside JOIN skipqueue_batch AS deeper ON deeper.parent_id = inside.id
    )
    SELECT inside.id
    FROM inside
    WHERE inside.finished_at IS NULL OR (inside.may_have_unfinished AND {job_inside} IS NOT NULL)
    LIMIT 1
) IS NULL
""",
    job_of_batch=joined(_UNFINISHED_JOB, batch="batch", unfinished=UNFINISHED_ROWS),
    job_inside=joined(_UNFINISHED_JOB, batch="inside", unfinished=UNFINISHED_ROWS),
)

# Sent by finish_batches, before it enqueues callbacks. Limits how long an INSERT waits for another transaction that
# holds the callback's unique key. Reads no table.
LIMIT_LOCKS = "SELECT set_config('lock_timeout', %(timeout)s, true)"

# Sent by finish_batches. Among these batches and their outer batches, returns the ids of the batches that are open
# although all of their jobs are finished. Locks nothing. Indexes: batch, inner, the primary key.
DONE_BATCHES = joined(
    """
SELECT batch.id
FROM skipqueue_batch AS batch
WHERE
    batch.id = ANY (
        ARRAY (
            SELECT unnest(%(ids)s::bigint[])
            UNION
            SELECT parent_id FROM skipqueue_batch WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NOT NULL
        )
    )
    AND batch.finished_at IS NULL
    AND {done}
""",
    done=_IS_DONE,
)

# Sent by finish_batches, in the transaction of FINISH_BATCHES. Locks the batches that are open, and returns their ids.
# Leaves out a batch that another transaction has locked to finish it or to add jobs. Index: the primary key.
LOCK_BATCHES = """
SELECT id
FROM skipqueue_batch
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED
"""

# Sent by finish_batches, after LOCK_BATCHES. Finishes the locked batches whose jobs are all finished, and returns them
# with their callbacks. This is not one statement with LOCK_BATCHES, because a statement does not see changes that are
# committed after it begins. `member`: the batch itself, and its inner batches on all levels. `is_failure`: whether a
# job of the batch, or a job or callback of an inner batch, did not complete; pruned jobs count too. If an inner batch
# has no failures, its row contains the numbers of its jobs (`has_sums`), including the jobs of its own inner batches.
# If it has failures, its jobs are counted again (`is_counted`), without callbacks, because they may have been retried.
# A `pruned` row with 0 jobs says that a callback was pruned. Indexes: batch, inner, pruned_of, the primary key.
FINISH_BATCHES = joined(
    """
WITH counted AS MATERIALIZED (
    SELECT batch.id, totals.completed, totals.failed, totals.discarded, totals.has_failed_callbacks
    FROM
        skipqueue_batch AS batch,
        LATERAL (
            WITH RECURSIVE member AS (
                SELECT
                    batch.id AS id,
                    NULL::bigint[] AS callback_ids,
                    true AS is_counted,
                    false AS has_sums,
                    0::bigint AS completed
                UNION ALL
                SELECT
                    inside.id,
                    inside.callback_ids,
                    member.is_counted AND (inside.failed > 0 OR inside.discarded > 0),
                    member.is_counted AND inside.failed = 0 AND inside.discarded = 0,
                    inside.completed
                FROM member JOIN skipqueue_batch AS inside ON inside.parent_id = member.id
            )
            SELECT
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'completed'), 0)::bigint AS completed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'failed'), 0)::bigint AS failed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'discarded'), 0)::bigint AS discarded,
                coalesce(bool_or(jobs.is_callback AND jobs.status <> 'completed'), false) AS has_failed_callbacks
            FROM
                member,
                LATERAL (
                    SELECT job.status, count(*) AS number, false AS is_callback
                    FROM skipqueue_job AS job
                    WHERE
                        member.is_counted
                        AND job.batch_id = member.id
                        AND (job.id = ANY (member.callback_ids)) IS NOT TRUE
                    GROUP BY job.status
                    UNION ALL
                    SELECT pruned.status, pruned.jobs, pruned.jobs = 0
                    FROM skipqueue_batch_pruned AS pruned
                    WHERE pruned.batch_id = member.id AND (member.is_counted OR pruned.jobs = 0)
                    UNION ALL
                    SELECT 'completed', member.completed, false
                    WHERE member.has_sums
                    UNION ALL
                    SELECT callback.status, 0, true
                    FROM skipqueue_job AS callback
                    WHERE callback.id = ANY (member.callback_ids)
                ) AS jobs
        ) AS totals
    WHERE batch.id = ANY (%(ids)s::bigint[]) AND batch.finished_at IS NULL AND {done}
)
UPDATE skipqueue_batch AS batch
SET finished_at = statement_timestamp(),
    completed = counted.completed,
    failed = counted.failed,
    discarded = counted.discarded
FROM counted
WHERE batch.id = ANY (%(ids)s::bigint[]) AND batch.id = counted.id
RETURNING
    batch.id AS id,
    batch.name AS name,
    batch.parent_id AS parent_id,
    batch.callbacks::text AS callbacks,
    batch.completed AS completed,
    batch.failed AS failed,
    batch.discarded AS discarded,
    batch.failed > 0 OR batch.discarded > 0 OR counted.has_failed_callbacks AS is_failure
""",
    done=_IS_DONE,
)

# Sent by finish_batches, in the transaction of FINISH_BATCHES. Stores the ids of the jobs that were enqueued for the
# callbacks. `callbacks` stores for each callback its `job_id`, or that it was skipped. Index: the primary key.
NOTE_CALLBACKS = """
UPDATE skipqueue_batch
SET callback_ids = %(callback_ids)s::bigint[],
    callbacks = %(callbacks)s::jsonb
WHERE id = %(id)s
"""

# Sent by Batch, the admin. Returns the number of each batch's jobs by status, including the jobs of inner batches. A
# finished batch has these numbers in its row. If the batch is open, the jobs of finished inner batches with failures
# are counted again, because they may have been retried. `member`: the batch itself (`root`), and its inner batches on
# all levels. `most`: the maximum number of jobs to count in one batch and one status. Indexes: batch, inner, pruned_of,
# the primary key.
PROGRESS = joined(
    """
WITH RECURSIVE member AS (
    SELECT id AS root, id, callback_ids, finished_at IS NULL AS is_counted, completed, failed, discarded
    FROM skipqueue_batch
    WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT
        member.root,
        inside.id,
        inside.callback_ids,
        inside.finished_at IS NULL OR inside.failed > 0 OR inside.discarded > 0,
        inside.completed,
        inside.failed,
        inside.discarded
    FROM member JOIN skipqueue_batch AS inside ON inside.parent_id = member.id
    WHERE member.is_counted
)
SELECT member.root, counted.status, sum(counted.jobs)::bigint
FROM
    member,
    LATERAL (
        SELECT stored.status, stored.jobs
        FROM
            (
                VALUES ('completed', member.completed), ('failed', member.failed), ('discarded', member.discarded)
            ) AS stored (status, jobs)
        WHERE NOT member.is_counted
        UNION ALL
        SELECT each_status.status, limited.jobs
        FROM
            (VALUES {unfinished}, {finished}) AS each_status (status),
            LATERAL (
                SELECT count(*) AS jobs
                FROM (
                    SELECT
                    FROM skipqueue_job
                    WHERE
                        batch_id = member.id
                        AND status = each_status.status
                        AND member.is_counted
                        AND (id = ANY (member.callback_ids)) IS NOT TRUE
                    LIMIT %(most)s
                ) AS job
            ) AS limited
        UNION ALL
        SELECT status, jobs FROM skipqueue_batch_pruned WHERE batch_id = member.id AND member.is_counted
    ) AS counted
WHERE counted.jobs > 0
GROUP BY member.root, counted.status
""",
    unfinished=UNFINISHED_ROWS,
    finished=FINISHED_ROWS,
)

# Sent by the supervisor. Returns the number of deleted batches. Deletes batches that were finished longer ago than
# their retention, and that have no unfinished job and no callback that can be retried. An inner batch is deleted only
# if its outer batch is finished and outermost, so an open batch keeps all of its inner batches. Batches with failures
# have a retention of their own. Indexes: prune, batch, the primary key.
PRUNE_BATCHES = joined(
    """
WITH expired AS MATERIALIZED (
    SELECT batch.id
    FROM skipqueue_batch AS batch
    WHERE
        batch.finished_at IS NOT NULL
        AND batch.finished_at <= statement_timestamp() - least(%(completed)s::interval, %(failed)s::interval)
        AND batch.finished_at <= statement_timestamp() - CASE
            WHEN batch.failed > 0 OR batch.discarded > 0 THEN %(failed)s::interval
            ELSE %(completed)s::interval
        END
        AND (
            SELECT outside.id
            FROM skipqueue_batch AS outside
            WHERE outside.id = batch.parent_id AND (outside.finished_at IS NULL OR outside.parent_id IS NOT NULL)
            LIMIT 1
        ) IS NULL
        AND (
            SELECT job.id
            FROM skipqueue_job AS job
            WHERE job.batch_id = batch.id AND job.status IN ({unfinished})
            LIMIT 1
        ) IS NULL
        AND (
            SELECT callback.id
            FROM skipqueue_job AS callback
            WHERE callback.id = ANY (batch.callback_ids) AND callback.status IN ('failed', 'discarded')
            LIMIT 1
        ) IS NULL
    ORDER BY batch.finished_at
    LIMIT %(limit)s
    FOR UPDATE OF batch SKIP LOCKED
),
forgotten AS (
    DELETE FROM skipqueue_batch_pruned WHERE batch_id = ANY (ARRAY (SELECT id FROM expired))
),
deleted AS (
    DELETE FROM skipqueue_batch AS batch WHERE batch.id = ANY (ARRAY (SELECT id FROM expired)) RETURNING batch.id
)
SELECT count(*) FROM deleted
""",
    unfinished=UNFINISHED_LIST,
)


MOST_BATCHES_FINISHED, FINISHING_SECONDS = 100, 0.2
"""The maximum number of batches that one call finishes, and the seconds after which it starts no other batch."""

LOCK_TIMEOUT_OF_BATCHES = "1s"
"""How long the INSERT of a callback may wait for the transaction that holds its unique key."""

ERRORS_OF_ONE_BATCH = ("55P03", "40P01", "40001")
"""SQLSTATEs of errors that leave the connection usable: a lock timeout, a deadlock, a serialization failure."""


@dataclass
class FinishResult:
    finished: int = 0
    """The number of batches that were finished."""
    missed: bool = False
    """Whether another transaction has locked a batch that is done, to finish it or to add jobs."""
    failed: set[int] = field(default_factory=set)
    """The batches whose callbacks could not be enqueued."""
    not_tried: set[int] = field(default_factory=set)
    """The batches that this call had no time for."""


def insert_batch(store: Store, *, name: str, parent_id: int | None, callbacks: Mapping[str, Any]) -> int:
    """Insert a batch, and return its id. No process can finish the batch before the caller's transaction ends."""
    values = {"name": name, "parent_id": parent_id, "callbacks": json.dumps(callbacks)}
    [(id,)] = store.rows(INSERT_BATCH, values)
    return int(id)


def join_batch(store: Store, batch_id: int) -> bool:
    """Keep an open batch from being finished until the caller's transaction ends. Returns False if it is finished."""
    return bool(store.rows(JOIN_BATCH, {"id": batch_id}))


def open_batches(store: Store, *, after: int = 0, limit: int = BATCH_ROWS) -> list[int]:
    return [id for (id,) in store.rows(OPEN_BATCHES, {"after": after, "limit": limit})]


def finish_batches(store: Store, ids: Iterable[int | None]) -> FinishResult:
    """Finish these batches, and their outer batches, if all of their jobs are finished.

    Finishes a limited number of batches. Raises database errors, except errors that concern a single batch.
    """
    result, deadline, tries = FinishResult(), time.monotonic() + FINISHING_SECONDS, 0
    ids_to_check: Collection[int | None] = set(ids)
    while ids_to_check:
        done_ids = sorted(id for (id,) in store.rows(DONE_BATCHES, {"ids": as_array(ids_to_check)}))
        outer_ids: set[int] = set()
        for position, id in enumerate(done_ids):
            if tries and (tries >= MOST_BATCHES_FINISHED or time.monotonic() > deadline):
                result.not_tried = {*done_ids[position:], *outer_ids}
                return result
            tries += 1
            finished = _finish_or_log(store, id, result)
            if finished is not None and finished.parent_id is not None:
                outer_ids.add(finished.parent_id)
        ids_to_check = outer_ids
    return result


def finish_empty_batch(store: Store, id: int) -> None:
    """Finish a batch that the caller's transaction has inserted, if it has no unfinished job."""
    if store.rows(DONE_BATCHES, {"ids": as_array([id])}):
        _finish(store, id)


def finish_open_batches(
    store: Store, *, after: int = 0, limit: int = BATCH_ROWS, skipped: Collection[int] = ()
) -> tuple[int | None, FinishResult]:
    """Of the next open batches after the id `after`, finish those whose jobs are all finished, except `skipped`.

    Returns the id after which the next call continues, or `None` if there are no more open batches.
    """
    ids = open_batches(store, after=after, limit=limit)
    result = finish_batches(store, set(ids).difference(skipped)) if ids else FinishResult()
    if result.not_tried:
        return min(result.not_tried) - 1, result
    return ids[-1] if len(ids) == limit else None, result


def finish_all_batches(store: Store) -> int:
    """Finish all batches that are done, so that a drain also runs their callbacks. Returns the number of batches.

    If a batch cannot be finished, supervisors try it again later.
    """
    after: int | None = 0
    failed: set[int] = set()
    while after is not None:
        after, result = finish_open_batches(store, after=after, skipped=failed)
        failed |= result.failed
        if result.finished:
            return result.finished
    return 0


def batch_progress(store: Store, ids: Collection[int], *, most: int | None = None) -> dict[int, dict[str, int]]:
    """Return the number of each batch's jobs by status, including the jobs of inner batches.

    most: the maximum number of jobs to count per batch and status.
    """
    counts: dict[int, dict[str, int]] = {id: {} for id in ids}
    for id, status, jobs in store.rows(PROGRESS, {"ids": as_array(ids), "most": most}):
        counts[id][status] = jobs
    return counts


def prune_batches(store: Store, *, limit: int = BATCH_ROWS) -> int:
    """Delete finished batches past the retention of jobs. Returns the number of deleted batches."""
    retentions = {status: settings.retention_of(status) for status in ("completed", "failed")}
    [(deleted,)] = store.rows(PRUNE_BATCHES, {**retentions, "limit": limit})
    return int(deleted)


def after_settle(store: Store, rows: Sequence[tuple[int, int, int | None]]) -> None:
    """After the commit of a settle, admit the jobs that waited for the settled jobs, and finish batches that are done.

    rows: the id, lease and batch of each settled job. After a database error, a supervisor does the rest.
    """
    batch_of_job = {job_id: batch_id for job_id, _lease, batch_id in rows if batch_id is not None}

    def admit_and_finish() -> None:
        with suppress(DatabaseError):
            admit_dependants(store, batch_of_job)
            finish_batches(store, batch_of_job.values())

    if batch_of_job:
        transaction.on_commit(admit_and_finish, using=store.alias, robust=True)


def _finish_or_log(store: Store, id: int, result: FinishResult) -> FinishedBatch | None:
    """Finish a batch, and record the result. If an error concerns only this batch, log it."""
    try:
        finished = _finish(store, id)
    except Exception as error:  # any error is possible: somebody may have edited the row by hand
        if isinstance(error, Error) and not _is_of_one_batch(error):
            raise
        result.failed.add(id)
        store.send(BatchNotFinished(store.alias, id, error))
        return None
    result.finished += finished is not None
    result.missed = result.missed or finished is None
    return finished


def _finish(store: Store, id: int) -> FinishedBatch | None:
    """Finish a batch, unless another transaction has locked it, or it is no longer done."""
    may_limit_locks = store.connection.get_autocommit()  # a transaction of the caller would keep the timeout
    skipped: list[CallbackSkipped] = []
    finished = None
    with transaction.atomic(using=store.alias):
        if store.rows(LOCK_BATCHES, {"ids": as_array([id])}):
            for row in store.rows(FINISH_BATCHES, {"ids": as_array([id])}):
                finished = FinishedBatch._make(row)
                skipped = _call_back(store, finished, may_limit_locks=may_limit_locks)
    if finished is not None:
        store.send(BatchesFinished(store.alias, [finished]))
    for event in skipped:
        store.send(event)
    return finished


def _call_back(store: Store, batch: FinishedBatch, *, may_limit_locks: bool) -> list[CallbackSkipped]:
    """Enqueue the callbacks of a batch that was just finished. The callbacks belong to the batch.

    Callbacks with a unique key come last, in the order of their keys, so that two batches with the same keys never
    deadlock. Returns the skipped callbacks.
    """
    callbacks = json.loads(batch.callbacks)
    names = ("on_failure" if batch.is_failure else "on_success", "on_finish")
    calls = [(name, *loaded(callbacks[name])) for name in names if name in callbacks]

    def key_order(named_call: tuple[str, JobSpec, EncodedCall]) -> tuple[bool, str]:
        _name, _spec, call = named_call
        return call.unique_key is not None, call.unique_key or ""

    calls.sort(key=key_order)
    if may_limit_locks and any(call.unique_key is not None for _name, _spec, call in calls):
        store.rows(LIMIT_LOCKS, {"timeout": LOCK_TIMEOUT_OF_BATCHES})
    callback_ids, skipped = [], []
    for name, spec, call in calls:
        inserted = new_job(store, store.enqueue_untraced, spec.with_columns(batch_id=batch.id), call)
        if inserted is not None:
            callback_ids.append(inserted.id)
            callbacks[name][CALLBACK_JOB] = inserted.id
        else:
            callbacks[name][CALLBACK_SKIPPED] = True
            skipped.append(CallbackSkipped(store.alias, batch.id, name, spec.task, str(call.unique_key)))
    if calls:
        stored = {"callback_ids": callback_ids or None, "callbacks": json.dumps(callbacks)}
        store.execute(NOTE_CALLBACKS, {"id": batch.id, **stored})
    return skipped


def _is_of_one_batch(error: Error) -> bool:
    """Return whether this error concerns only the batch, and leaves the connection usable."""
    is_refusal = isinstance(error, DatabaseError) and is_refused(error)
    return is_refusal or getattr(error.__cause__, "sqlstate", None) in ERRORS_OF_ONE_BATCH

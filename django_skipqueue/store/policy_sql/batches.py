"""Make batches, find those whose jobs are finished, and finish them.

Whether a batch is finished is never counted while its jobs run: it follows from the rows of its jobs.
"""

# Batch → the id and the time of the new batch. It is not finished before its transaction is committed: until then
# nobody else sees it.
INSERT_BATCH = """
INSERT INTO skipqueue_batch (name, parent_id, callbacks)
VALUES (%(name)s, %(parent_id)s::bigint, %(callbacks)s::jsonb)
RETURNING id, created_at
"""

# Batch, in the transaction that adds jobs to it → its id; no row if it is finished. Until the transaction ends, nobody
# finishes the batch; others may add jobs as well. Index: the primary key.
JOIN_BATCH = """
SELECT id
FROM skipqueue_batch
WHERE id = %(id)s AND finished_at IS NULL
FOR KEY SHARE
"""

# supervisor, worker before a drain ends → the ids of open batches after an id: those to be looked at next. Index: open.
OPEN_BATCHES = """
SELECT id
FROM skipqueue_batch
WHERE finished_at IS NULL AND id > %(after)s
ORDER BY id
LIMIT %(limit)s
"""

# The id of a job of the batch that is not finished, or NULL. The newest jobs are looked at first: while a batch runs,
# they are the ones that wait, and the entries of the jobs that have left a status need not be read.
_UNFINISHED_JOB = """(
        SELECT newest.id
        FROM
            (VALUES ('running'), ('queued'), ('scheduled'), ('blocked')) AS unfinished (status),
            LATERAL (
                SELECT id
                FROM skipqueue_job AS job
                WHERE job.batch_id = {batch}.id AND job.status = unfinished.status
                ORDER BY job.id DESC
                LIMIT 1
            ) AS newest
        LIMIT 1
    )"""

# The condition under which a batch is done. A batch with inner ones, on all levels, waits for them, for their callback
# jobs, and for the jobs of them that run again. Indexes: batch, inner.
_IS_DONE = """
{job_of_batch} IS NULL
AND (
    WITH RECURSIVE inside AS (
        SELECT id, finished_at, callback_ids IS NOT NULL OR failed > 0 OR discarded > 0 AS may_run
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
    WHERE inside.finished_at IS NULL OR (inside.may_run AND {job_inside} IS NOT NULL)
    LIMIT 1
) IS NULL
"""


def _unfinished_job_of(batch: str) -> str:
    """The expression for this table of batches. Called once, at import."""
    return _UNFINISHED_JOB.replace("{batch}", batch)


def _if_done(statement: str) -> str:
    """Replace `{done}` in a statement by the condition. Called once, at import."""
    done = _IS_DONE.replace("{job_of_batch}", _unfinished_job_of("batch"))
    return statement.replace("{done}", done.replace("{job_inside}", _unfinished_job_of("inside")))


# finish_batches, before it enqueues callbacks: how long an INSERT may wait for the transaction that holds its unique
# key. Reads no table.
LIMIT_LOCKS = "SELECT set_config('lock_timeout', %(timeout)s, true)"

# finish_batches → the ids of those batches, and of the batches outside of them, that are open although all of their
# jobs are finished. Locks nothing. Indexes: as above.
DONE_BATCHES = _if_done(
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
"""
)

# finish_batches, in the transaction of the next statement → the ids of those batches that are open and that nobody else
# has locked: to finish them, or to add jobs. Index: the primary key.
LOCK_BATCHES = """
SELECT id
FROM skipqueue_batch
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED
"""

# finish_batches → the batches that are finished now: for each the calls to be made. A statement of its own after the
# locks, since a statement does not see what was committed while it waited, or while it chose its rows.
# `is_failure`: a job of the batch, or of an inner one, or a callback of an inner one, has not completed; it may have
# been pruned. An inner batch without failures has its numbers in its row, and those of the batches in it. The jobs of
# one with failures are counted again, without its callbacks: they may have been retried since. Indexes: batch, inner,
# pruned_of, the primary key.
FINISH_BATCHES = _if_done(
    """
WITH counted AS MATERIALIZED (
    SELECT batch.id, tree.completed, tree.failed, tree.discarded, tree.has_failed_callbacks
    FROM
        skipqueue_batch AS batch,
        LATERAL (
            WITH RECURSIVE part AS (
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
                    part.is_counted AND (inside.failed > 0 OR inside.discarded > 0),
                    part.is_counted AND inside.failed = 0 AND inside.discarded = 0,
                    inside.completed
                FROM part JOIN skipqueue_batch AS inside ON inside.parent_id = part.id
            )
            SELECT
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'completed'), 0)::bigint AS completed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'failed'), 0)::bigint AS failed,
                coalesce(sum(jobs.number) FILTER (WHERE jobs.status = 'discarded'), 0)::bigint AS discarded,
                coalesce(bool_or(jobs.is_callback AND jobs.status <> 'completed'), false) AS has_failed_callbacks
            FROM
                part,
                LATERAL (
                    SELECT job.status, count(*) AS number, false AS is_callback
                    FROM skipqueue_job AS job
                    WHERE part.is_counted AND job.batch_id = part.id AND (job.id = ANY (part.callback_ids)) IS NOT TRUE
                    GROUP BY job.status
                    UNION ALL
                    SELECT pruned.status, pruned.jobs, pruned.jobs = 0
                    FROM skipqueue_batch_pruned AS pruned
                    WHERE pruned.batch_id = part.id AND (part.is_counted OR pruned.jobs = 0)
                    UNION ALL
                    SELECT 'completed', part.completed, false
                    WHERE part.has_sums
                    UNION ALL
                    SELECT callback.status, 0, true
                    FROM skipqueue_job AS callback
                    WHERE callback.id = ANY (part.callback_ids)
                ) AS jobs
        ) AS tree
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
"""
)

# finish_batches, in the same transaction: the jobs that were enqueued for the callbacks; `callbacks` has for each of
# them its `job_id`, or that it was skipped. Index: the primary key.
NOTE_CALLBACKS = """
UPDATE skipqueue_batch
SET callback_ids = %(callback_ids)s::bigint[],
    callbacks = %(callbacks)s::jsonb
WHERE id = %(id)s
"""

# Batch, admin → for each batch the numbers of its jobs, with those of inner batches, by status. A finished batch has
# them in its row. In an open one, the jobs of a finished inner one with failures are counted again: they may have been
# retried. `most`: of the jobs of one batch in one status no more are counted. Indexes: batch, inner, pruned_of, the
# primary key.
PROGRESS = """
WITH RECURSIVE tree AS (
    SELECT id AS root, id, callback_ids, finished_at IS NULL AS is_counted, completed, failed, discarded
    FROM skipqueue_batch
    WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT
        tree.root,
        inside.id,
        inside.callback_ids,
        inside.finished_at IS NULL OR inside.failed > 0 OR inside.discarded > 0,
        inside.completed,
        inside.failed,
        inside.discarded
    FROM tree JOIN skipqueue_batch AS inside ON inside.parent_id = tree.id
    WHERE tree.is_counted
)
SELECT tree.root, part.status, sum(part.jobs)::bigint
FROM
    tree,
    LATERAL (
        SELECT sums.status, sums.jobs
        FROM
            (
                VALUES ('completed', tree.completed), ('failed', tree.failed), ('discarded', tree.discarded)
            ) AS sums (status, jobs)
        WHERE NOT tree.is_counted
        UNION ALL
        SELECT kind.status, found.jobs
        FROM
            (
                VALUES
                    ('scheduled'), ('blocked'), ('queued'), ('running'), ('completed'), ('failed'), ('discarded')
            ) AS kind (status),
            LATERAL (
                SELECT count(*) AS jobs
                FROM (
                    SELECT
                    FROM skipqueue_job
                    WHERE
                        batch_id = tree.id
                        AND status = kind.status
                        AND tree.is_counted
                        AND (id = ANY (tree.callback_ids)) IS NOT TRUE
                    LIMIT %(most)s
                ) AS job
            ) AS found
        UNION ALL
        SELECT status, jobs FROM skipqueue_batch_pruned WHERE batch_id = tree.id AND tree.is_counted
    ) AS part
WHERE part.jobs > 0
GROUP BY tree.root, part.status
"""

# supervisor → how many finished batches were deleted: past the retention, with no unfinished job, with no callback that
# can be retried, and in no other batch but one that is finished and in none. So the outer ones are deleted first, and
# one that is open has all inner ones. Those that failed have a retention of their own. Indexes: prune, batch, the
# primary key.
PRUNE_BATCHES = """
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
            WHERE job.batch_id = batch.id AND job.status IN ('scheduled', 'blocked', 'queued', 'running')
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
"""

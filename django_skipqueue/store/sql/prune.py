"""Deleting finished jobs."""

# supervisor, prunejobs → how many finished jobs of each status were deleted, within each the oldest first. Index:
# prune, once for each status; and prune_own, which holds only jobs with a retention of their own, a shorter one.
# A retention of NULL keeps a status for ever. A job that is being retried is locked, and skipped; so are those named.
PRUNE = """
WITH expired AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'completed'
            AND finished_at <= statement_timestamp() - %(completed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS completed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'discarded'
            AND finished_at <= statement_timestamp() - %(discarded)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS discarded
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'failed'
            AND finished_at <= statement_timestamp() - %(failed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS failed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND metadata ? 'retention'
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS with_their_own
    LIMIT %(limit)s
),
pruned AS (
    DELETE FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM expired))
    RETURNING job.status
)
SELECT status, count(*) FROM pruned GROUP BY status
"""

# supervisor, prunejobs, after a PRUNE that was refused → the ids of the jobs that it chose. Indexes: as PRUNE.
EXPIRED = """
WITH expired AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'completed'
            AND finished_at <= statement_timestamp() - %(completed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS completed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'discarded'
            AND finished_at <= statement_timestamp() - %(discarded)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS discarded
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status = 'failed'
            AND finished_at <= statement_timestamp() - %(failed)s::interval
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS failed
    UNION ALL
    SELECT id FROM (
        SELECT id FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND metadata ? 'retention'
            AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
                <= statement_timestamp() AT TIME ZONE 'UTC'
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (metadata->'retention'->>status)::float8)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS with_their_own
    LIMIT %(limit)s
)
SELECT id FROM expired
"""

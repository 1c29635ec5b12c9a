"""Deleting finished jobs."""

# supervisor, prunejobs → the ids of finished jobs whose retention is over, within each status the oldest first; they
# are locked. A retention of NULL keeps a status for ever. A job with a retention of its own, which is a shorter one, is
# found by the second half, and by the first one too if both are over. The ids in `skipped` are left out, and rows that
# others have locked. Indexes: prune, once for each status, and prune_own.
EXPIRED = """
SELECT job.id
FROM
    (
        VALUES
            ('completed', %(completed)s::interval),
            ('discarded', %(discarded)s::interval),
            ('failed', %(failed)s::interval)
    ) AS kept (status, retention),
    LATERAL (
        SELECT id
        FROM skipqueue_job
        WHERE
            status IN ('completed', 'failed', 'discarded')
            AND status = kept.status
            AND finished_at <= statement_timestamp() - kept.retention
            AND id <> ALL (%(skipped)s::bigint[])
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS job
UNION ALL
SELECT id
FROM (
    SELECT id
    FROM skipqueue_job
    WHERE
        status IN ('completed', 'failed', 'discarded')
        AND retention IS NOT NULL
        AND (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
            <= statement_timestamp() AT TIME ZONE 'UTC'
        AND id <> ALL (%(skipped)s::bigint[])
    ORDER BY (finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS with_their_own
LIMIT %(limit)s
"""

# supervisor, prunejobs, in the same transaction → how many of each status were deleted. Index: the primary key.
PRUNE = """
WITH pruned AS (
    DELETE FROM skipqueue_job
    WHERE id = ANY (ARRAY (SELECT unnest(%(ids)s::bigint[])))
    RETURNING status
)
SELECT status, count(*) FROM pruned GROUP BY status
"""

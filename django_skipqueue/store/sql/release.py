"""Release claimed jobs."""

from .carried import of_carrier

# release → id and queue of the jobs that were put back into their queues, and the key of the limit at which a job waits
# again: it may have been claimed ahead, without a permit. No attempt is charged. A row whose lease does
# not match stays unchanged. `interrupted`: the jobs were running; then their rows keep which worker gave them up, and
# when. `later`: they wait for up to 10 s first. Index: the primary key.
RELEASE = """
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN %(later)s::boolean THEN 'scheduled'
        WHEN job.limit_kind = 'concurrency' AND job.rate_key IS NULL THEN 'blocked'
        ELSE 'queued'
    END,
    run_after = CASE
        WHEN %(later)s::boolean THEN statement_timestamp() + random() * interval '10 seconds'
        ELSE job.run_after
    END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    has_permit = NULL,
    started_at = NULL,
    operations = CASE
        WHEN %(interrupted)s::boolean
        THEN COALESCE(
            CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'release', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts, 'since', job.started_at
        )
        ELSE job.operations
    END
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, job.queue_name, CASE WHEN job.status = 'blocked' THEN job.limit_key END
"""

# relay → as RELEASE, of jobs that the carrier, or a relay of it, holds. Index: the primary key.
RELEASE_CARRIED = of_carrier(RELEASE)

# supervisor, after a worker died; worker, after its connection broke → as RELEASE, of the jobs that the worker holds
# but has not started, now released. No attempt is charged. A live worker holds such jobs for one of two reasons: the
# claim was committed but its answer was lost; or an earlier release skipped a locked row. Nothing recovers the jobs of
# a live worker, so it has to release them itself. Index: recover.
RELEASE_ORPHANS = """
WITH orphan AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_by = %(worker_id)s
        AND locked_at <= COALESCE(%(claimed_until)s, 'infinity'::timestamptz)
        AND id <> ALL (%(known)s::bigint[])
    ORDER BY locked_at
    LIMIT 10000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN job.limit_kind = 'concurrency' AND job.rate_key IS NULL THEN 'blocked' ELSE 'queued' END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    has_permit = NULL,
    started_at = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM orphan))
RETURNING job.id, job.queue_name, CASE WHEN job.status = 'blocked' THEN job.limit_key END
"""

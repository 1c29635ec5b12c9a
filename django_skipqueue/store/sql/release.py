"""Giving claimed jobs back."""

# release → id and queue of the jobs given back to their queues, no attempt charged. Fenced as settle is. Index: the
# primary key.
RELEASE = """
UPDATE skipqueue_job AS job
SET status = 'queued',
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    started_at = NULL
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease
RETURNING job.id, job.queue_name
"""

# supervisor, after a worker died; worker, after its connection broke → id and queue of the jobs that the worker holds
# and has not begun, given back at no attempt. After a broken connection there may be such that it never heard of: their
# claim was committed, its answer was lost, and nobody recovers the jobs of a live worker. There may be such too that it
# could not give back, because somebody had them locked. Index: recover.
RELEASE_ORPHANS = """
WITH orphan AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by = %(worker_id)s AND id <> ALL (%(known)s::bigint[])
    ORDER BY locked_at
    LIMIT 10000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'queued',
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    started_at = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM orphan))
RETURNING job.id, job.queue_name
"""

"""Giving claimed jobs back, and keeping those that are claimed by hand."""

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

# supervisor, after a worker died → a row if it still holds jobs, which somebody has locked. Index: recover. Without the
# order the planner reads the table instead, as it expects to meet such a job soon.
WORKER_HAS_JOBS = """
SELECT 1
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(worker_id)s
ORDER BY locked_at
LIMIT 1
"""

# job.heartbeat, for hand-written loops without a worker row → the id, if the lease still holds. Index: the primary key.
HEARTBEAT_JOB = """
UPDATE skipqueue_job AS job
SET locked_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING job.id
"""

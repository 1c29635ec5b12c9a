"""Who holds which jobs: leases that were lost, rows that are locked, jobs that are claimed by hand."""

# worker, about what it has held for a while → those of its leases that have passed on, by id and lease; with the reason
# where a cancel took the job, NULL where anything else did. Index: the primary key.
# A job that its own task has completed was not taken: nobody else completes under this lease.
LOST_LEASES = """
SELECT
    held.id, held.lease, CASE WHEN job.status = 'discarded' AND job.lease = held.lease + 1 THEN job.last_error END
FROM
    unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
    LEFT JOIN skipqueue_job AS job ON job.id = held.id
WHERE
    job.lease IS DISTINCT FROM held.lease
    AND (job.status = 'completed' AND job.lease = held.lease + 1) IS NOT TRUE
"""

# worker, after a settle that got no answer, and before a release → those of these jobs that somebody else has locked:
# sent with the others, they would keep them waiting, and fail them at the lock timeout. A row that is gone is not
# locked. Index: the primary key.
LOCKED_ROWS = """
WITH held AS MATERIALIZED (
    SELECT job.id
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease) JOIN skipqueue_job AS job
        USING (id, lease)
),
free AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM held))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM held
EXCEPT
SELECT id FROM free
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

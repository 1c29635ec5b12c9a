"""Find lost leases, locked rows and the jobs of a worker; keep the lease of a job that was claimed by hand."""

# worker → the id and lease of each of its jobs whose lease is no longer valid; with the reason if the job was
# cancelled, else NULL. Index: the primary key.
# A job that its own task has completed is not lost: nothing else can complete a job under this lease.
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

# worker, after a settle timed out, and before a release → the ids of the jobs whose rows another transaction has
# locked. In one statement with the others, a locked row would block them until the lock timeout, and then all would
# fail. A deleted row does not count as locked. Index: the primary key.
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

# supervisor, after a worker died → a row if the worker still holds jobs: recovery has skipped their locked rows. Index:
# recover. Without ORDER BY the planner reads the table instead, because it expects to find a matching row early.
WORKER_HAS_JOBS = """
SELECT 1
FROM skipqueue_job
WHERE status = 'running' AND locked_by = %(worker_id)s
ORDER BY locked_at
LIMIT 1
"""

# Job.heartbeat, for loops written by hand, which have no worker row → the id if the lease is still valid. Index: the
# primary key.
HEARTBEAT_JOB = """
UPDATE skipqueue_job AS job
SET locked_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING job.id
"""

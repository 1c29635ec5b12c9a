"""Admit scheduled jobs that are due."""

from .gates import entering

# supervisor, worker before a drain ends → by queue: the number of jobs that are queued now, and the keys of those that
# wait at the gate of limits now, or at that of rates. Index: admit.
ADMIT = entering(
    """
WITH due AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = {status}
    WHERE job.id = ANY (ARRAY (SELECT id FROM due))
    RETURNING job.queue_name, job.status, job.limit_key, job.rate_key
)
SELECT
    queue_name,
    count(*) FILTER (WHERE status = 'queued'),
    array_agg(limit_key) FILTER (WHERE status = 'blocked' AND limit_key IS NOT NULL),
    array_agg(rate_key) FILTER (WHERE status = 'blocked' AND limit_key IS NULL AND rate_key IS NOT NULL)
FROM admitted
GROUP BY queue_name
""",
    column="job.{}",
    past="time",
)

# supervisor → the seconds until the next scheduled job is due, below 0 if it is overdue; no row if no job is scheduled.
# Index: admit.
NEXT_DUE = """
SELECT extract(epoch FROM run_after - statement_timestamp())::float8
FROM skipqueue_job
WHERE status = 'scheduled'
ORDER BY run_after, id
LIMIT 1
"""

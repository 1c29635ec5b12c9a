"""Change the limits and the rates of whole queues, and have the jobs wait again that were admitted beyond them.

Invariant: nothing here admits a job. `admission.sql` says which jobs of a key hold a permit, `admission.rate_sql` which
have a token.
"""

# supervisor, after the limit of a queue was changed → the number of jobs that wait for a permit again. A limit that was
# lowered, or is new, counts at once for the jobs that were admitted before and have not been claimed: those that wait
# for a token of their rate first, for they would start last. At most `limit` jobs that hold a permit are looked at
# beside those that may hold one. Index: limit_held; the table of queues is read whole: it has a row for each queue that
# was paused or limited.
BLOCK_SURPLUS = """
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY status DESC, priority DESC, id) AS place
            FROM (
                SELECT id, status, priority
                FROM skipqueue_job
                WHERE
                    limit_key = 'queue:' || queue.name
                    AND (status IN ('queued', 'running') OR (status = 'blocked' AND has_permit))
                LIMIT queue.concurrency + %(limit)s
            ) AS found
        ) AS held
        JOIN skipqueue_job AS job USING (id)
    WHERE
        queue.concurrency > 0
        AND held.place > queue.concurrency
        AND (job.status = 'queued' OR (job.status = 'blocked' AND job.has_permit))
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', has_permit = NULL
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.id
)
SELECT count(*) FROM blocked
"""

# Queue.limit → the row has the limit, in place of the one before: NULL is that of the settings, 0 is none. Index: the
# primary key.
LIMIT_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, concurrency)
VALUES (%(name)s, %(concurrency)s::smallint)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency
"""

# supervisor, after the rate of a queue was changed → the keys of the jobs that wait for a token again. A rate that was
# lowered, or is new, counts at once for the jobs that were admitted before and have not been claimed: of those no more
# are left than the burst. They keep the permit of their limit. At most `limit` jobs are looked at beside those that may
# stay. Index: rate_queued; the table of queues is read whole: it has a row for each queue that was paused or limited.
# The rows of these jobs are found by the primary key. With a plain `status = 'queued'` a planner that expects few such
# rows may walk the whole claim index instead, on PostgreSQL 15 once for each job.
BLOCK_UNRATED = """
WITH surplus AS MATERIALIZED (
    SELECT job.id
    FROM
        skipqueue_queue AS queue,
        LATERAL (
            SELECT CASE
                WHEN queue.rate_interval IS NOT NULL THEN queue.rate_burst::integer
                ELSE (
                    SELECT rate_burst
                    FROM skipqueue_job
                    WHERE rate_key = 'queue:' || queue.name AND status = 'queued'
                    LIMIT 1
                )
            END AS burst
        ) AS rated,
        LATERAL (
            SELECT id, row_number() OVER (ORDER BY priority DESC, run_after, id) AS place
            FROM (
                SELECT id, priority, run_after
                FROM skipqueue_job
                WHERE rate_key = 'queue:' || queue.name AND status = 'queued' AND rated.burst IS NOT NULL
                LIMIT COALESCE(rated.burst, 0) + %(limit)s
            ) AS found
        ) AS queued
        JOIN skipqueue_job AS job USING (id)
    WHERE queued.place > rated.burst AND job.status || '' = 'queued'
    ORDER BY job.id
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS (
    UPDATE skipqueue_job AS job
    SET status = 'blocked', has_permit = CASE WHEN job.limit_key IS NOT NULL THEN true END
    WHERE job.id = ANY (ARRAY (SELECT id FROM surplus)) AND job.status <> 'running'
    RETURNING job.rate_key
)
SELECT rate_key, count(*) FROM blocked GROUP BY rate_key
"""

# Queue.rate → the row has the rate, in place of the one before: NULL is that of the settings, 0 is none. Index: the
# primary key.
RATE_QUEUE = """
INSERT INTO skipqueue_queue AS queue (name, rate_interval, rate_burst)
VALUES (%(name)s, %(interval)s::float8, %(burst)s::smallint)
ON CONFLICT (name) DO UPDATE SET rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst
"""

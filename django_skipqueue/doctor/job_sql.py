"""Every statement of the doctor on the job table, as a literal. Each reads a bounded number of rows, by an index."""

# no-worker → whether a scheduled job is due. Index: admit.
IS_OVERDUE = """
SELECT
FROM skipqueue_job
WHERE status = 'scheduled' AND run_after <= statement_timestamp()
ORDER BY run_after
LIMIT 1
"""

# unknown-task → the tasks of the first jobs of each of these queues, and of the scheduled jobs that are due first.
# Index: claim, once for each queue, and admit.
TASKS = """
SELECT DISTINCT task
FROM (
    SELECT job.task
    FROM
        unnest(%(queue_names)s::text[]) AS queue (name)
        CROSS JOIN LATERAL (
            SELECT task
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name = queue.name
            ORDER BY (-priority), run_after, id
            LIMIT 200
        ) AS job
    UNION ALL
    (
        SELECT task
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after
        LIMIT 1000
    )
) AS first_jobs
ORDER BY task
LIMIT 1000
"""

# long-job → the jobs that have run for longer than `seconds`, the longest first. Those of carriers are not among them:
# nobody knows how long they have run, and how long they have waited there. Index: recover.
LONG_JOBS = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM skipqueue_job
WHERE
    status = 'running'
    AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
    AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_carrier)
ORDER BY locked_at
LIMIT 100
"""

# orphaned-job → running jobs that were claimed longer than `seconds` ago, and whose worker has written no heartbeat
# since. What a carrier holds is not orphaned: it may run when all relays are gone. Index: recover.
ORPHANED_JOBS = """
SELECT id, task, locked_by, date_part('epoch', statement_timestamp() - locked_at) AS age
FROM (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_at <= statement_timestamp() - make_interval(secs => %(seconds)s)
        AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_carrier)
    ORDER BY locked_at
    LIMIT 5000
) AS job
WHERE NOT EXISTS (
    SELECT
    FROM skipqueue_worker AS worker
    WHERE
        worker.id = job.locked_by
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(seconds)s)
)
ORDER BY locked_at
LIMIT 100
"""

# stuck-key → the unfinished jobs that have been due for longer than `seconds` and hold a unique key, the longest first.
# Of the jobs in each status 2,000 are looked at, the first ones; of the queued jobs of one priority in one queue, 200.
# `head`: the pairs of a queue and a priority, with the due time of their first job. Indexes: admit, blocked, recover,
# and claim, one probe for each pair, and one range for each whose first job is that old.
STUCK_KEYS = """
WITH RECURSIVE head AS (
    (
        SELECT queue_name, (-priority) AS rank, run_after
        FROM skipqueue_job
        WHERE status = 'queued'
        ORDER BY queue_name, (-priority), run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.rank, next.run_after
    FROM
        head,
        LATERAL (
            SELECT queue_name, (-priority) AS rank, run_after
            FROM skipqueue_job
            WHERE status = 'queued' AND (queue_name, (-priority)) > (head.queue_name, head.rank)
            ORDER BY queue_name, (-priority), run_after, id
            LIMIT 1
        ) AS next
),
first AS (
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'scheduled'
        ORDER BY run_after, id
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'blocked'
        ORDER BY id
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
        FROM skipqueue_job
        WHERE status = 'running'
        ORDER BY locked_at
        LIMIT 2000
    )
    UNION ALL
    (
        SELECT job.*
        FROM
            (SELECT * FROM head LIMIT 1000) AS head,
            LATERAL (
                SELECT id, task, unique_key, unique_seconds, lease, status, enqueued_at, run_after
                FROM skipqueue_job
                WHERE status = 'queued' AND queue_name = head.queue_name AND (-priority) = head.rank
                ORDER BY run_after, id
                LIMIT 200
            ) AS job
        WHERE head.run_after < statement_timestamp() - make_interval(secs => %(seconds)s)
        LIMIT 2000
    )
)
SELECT id, task, unique_key, status, date_part('epoch', statement_timestamp() - GREATEST(enqueued_at, run_after)) AS age
FROM first
WHERE
    unique_key IS NOT NULL
    AND (unique_seconds IS NULL OR unique_seconds > 0 OR lease = 0)
    AND GREATEST(enqueued_at, run_after) < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY age DESC
LIMIT 100
"""

# stuck-dependant → the jobs that wait for one that was deleted, or pruned, and had not completed, among the first
# dependencies. Indexes: unmet of dependencies, the primary key.
STUCK_DEPENDANTS = """
SELECT job.id, job.task, waiting.needs_job_id
FROM
    (
        SELECT needs_job_id, job_id, pruned_as
        FROM skipqueue_dependency
        WHERE NOT is_met AND after_failure = 'wait'
        ORDER BY needs_job_id
        LIMIT 5000
    ) AS waiting
    JOIN skipqueue_job AS job ON job.id = waiting.job_id
WHERE
    waiting.pruned_as IS DISTINCT FROM 'completed'
    AND (SELECT needed.id FROM skipqueue_job AS needed WHERE needed.id = waiting.needs_job_id) IS NULL
    AND job.awaits_jobs
    AND job.finished_at IS NULL
LIMIT 100
"""

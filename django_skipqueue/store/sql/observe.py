"""Read what is in the queues now, by a few probes of an index: for pages, commands and metrics."""

# pages, commands, metrics → each queue with queued jobs, alphabetically: its name, the number of its queued jobs,
# whether there are more than were counted, and the seconds since its longest waiting job was due. `limit`: the number
# of (queue, priority) pairs that are looked at. At most `most` jobs of a queue are counted, and `together` of all
# queues, but `least` of each queue in any case. Index: claim, one probe for each pair, and one range for each queue.
# A range with an order is read from the index alone. With an order by (-priority) PostgreSQL would fetch every job from
# the table as well: it does not see that the index has this value. Without any, it may read the whole table instead.
QUEUED_NOW = """
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
queue AS MATERIALIZED (
    SELECT queue_name AS name, min(run_after) AS oldest
    FROM (SELECT queue_name, run_after FROM head LIMIT %(limit)s) AS head
    GROUP BY queue_name
),
budget AS MATERIALIZED (
    SELECT LEAST(%(most)s, GREATEST(%(least)s, %(together)s / GREATEST(count(*), 1))) AS most FROM queue
)
SELECT
    queue.name, counted.number, counted.number > budget.most, date_part('epoch', statement_timestamp() - queue.oldest)
FROM
    queue, budget,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE status = 'queued' AND queue_name >= queue.name AND queue_name <= queue.name
            ORDER BY queue_name
            LIMIT (SELECT most + 1 FROM budget)
        ) AS job
    ) AS counted
ORDER BY queue.name
"""

# pages, commands, metrics → for each queue with running jobs: its name, their number, and the seconds since the first
# of them was claimed. Of all running jobs, `limit` are looked at, those first that were claimed first. Index: recover.
RUNNING_NOW = """
SELECT queue_name, count(*), date_part('epoch', statement_timestamp() - min(locked_at))
FROM (
    SELECT queue_name, locked_at FROM skipqueue_job WHERE status = 'running' ORDER BY locked_at LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# pages → for each worker with running jobs: its id, the number of its jobs by task, and the `shown` first claimed ones,
# both as JSON. Of the running jobs that no carrier holds, `limit` are looked at, those first that were claimed first:
# once, however many workers there are. Index: recover.
HELD_NOW = """
WITH held AS MATERIALIZED (
    SELECT id, task, locked_by, locked_at
    FROM skipqueue_job
    WHERE status = 'running' AND locked_by <> ALL (SELECT id FROM skipqueue_worker WHERE is_carrier)
    ORDER BY locked_at
    LIMIT %(limit)s
),
of_task AS (
    SELECT locked_by, json_object_agg(task, number) AS tasks
    FROM (SELECT locked_by, task, count(*) AS number FROM held GROUP BY locked_by, task) AS counted
    GROUP BY locked_by
),
first AS (
    SELECT locked_by, json_agg(json_build_object('id', id, 'task', task, 'since', locked_at) ORDER BY place) AS jobs
    FROM (SELECT *, row_number() OVER (PARTITION BY locked_by ORDER BY locked_at, id) AS place FROM held) AS numbered
    WHERE place <= %(shown)s
    GROUP BY locked_by
)
SELECT locked_by, tasks::text, jobs::text
FROM of_task JOIN first USING (locked_by)
"""

# pages, commands, metrics, for a queue with more jobs than `QUEUED_NOW` counts → how many the planner expects, from the
# statistics of the last ANALYZE. Reads no row.
EXPECTED_QUEUED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'queued' AND queue_name = %(queue_name)s
"""

# metrics, where more jobs run than `RUNNING_NOW` looks at → how many the planner expects. Reads no row.
EXPECTED_RUNNING = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'running'
"""

# pages → the roll-ups of each queue, and of all (an empty name), of the current minute and the `minutes` before it: the
# name, the number of jobs that ended, the minutes since the first of these began, the histogram of the waiting times.
# Index: prune of the roll-ups.
RATES_NOW = """
SELECT queue_name, ended, date_part('epoch', statement_timestamp() - first_minute) / 60, waited
FROM (
    SELECT queue_name, task, completed + failed + discarded AS ended, waited, first_minute
    FROM
        skipqueue_rollup,
        (SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %(minutes)s)) AS age (first_minute)
    WHERE span = 60 AND starts_at >= first_minute
    ORDER BY starts_at DESC
    LIMIT 20000
) AS recent
WHERE task = ''
"""

"""Every statement of the dashboard, as a literal. Each reads a bounded number of roll-ups, by an index, and no job."""

# dashboard → the time on the database's clock, in seconds since the epoch.
NOW = "SELECT date_part('epoch', statement_timestamp())"

# charts → the roll-ups of a task in a queue since a time: when each starts, its numbers and histograms. At most a row
# for each minute of a day. Index: the primary key of the roll-ups.
TIMELINE = """
SELECT date_part('epoch', starts_at), completed, retried, failed, discarded, waited, ran, oldest_seconds
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = %(queue_name)s
    AND task = %(task)s
    AND starts_at >= to_timestamp(%(since)s)
LIMIT 5000
"""

# charts → the names of the queues that were deepest since a time, the deepest first. Of all queues, a thousand are
# looked at. Index: the primary key of the roll-ups.
DEEPEST_QUEUES = """
WITH queue AS MATERIALIZED (
    SELECT queue_name AS name
    FROM (
        SELECT queue_name, task FROM skipqueue_rollup WHERE span = 0 ORDER BY queue_name, task LIMIT 20000
    ) AS rollup
    WHERE task = '' AND queue_name <> ''
    LIMIT 1000
)
SELECT queue.name
FROM
    queue,
    LATERAL (
        SELECT max(depth) AS depth
        FROM skipqueue_rollup
        WHERE
            span = 3600
            AND queue_name = queue.name
            AND task = ''
            AND starts_at >= date_trunc('hour', to_timestamp(%(since)s))
    ) AS deepest
WHERE deepest.depth > 0
ORDER BY deepest.depth DESC, queue.name
LIMIT %(limit)s
"""

# charts → the greatest depth of each of these queues in each bucket of `width` seconds since a time: the queue, the
# start of the bucket, the depth. Index: the primary key of the roll-ups.
DEPTHS = """
SELECT queue_name, floor(date_part('epoch', starts_at) / %(width)s) * %(width)s AS bucket, max(depth)
FROM skipqueue_rollup
WHERE
    span = %(span)s
    AND queue_name = ANY (%(queue_names)s)
    AND task = ''
    AND starts_at >= to_timestamp(%(since)s)
    AND depth IS NOT NULL
GROUP BY queue_name, bucket
"""

# slowest tasks → the tasks with the longest mean run time since a time: task, queue, attempts, failed attempts, mean
# run time in seconds, histogram of run times, without its empty buckets: pairs of a place, from 1 on, and a count. Of
# the roll-ups, the newest 50,000 are looked at. Indexes: prune of the roll-ups, and their primary key.
SLOWEST_TASKS = """
WITH recent AS MATERIALIZED (
    SELECT queue_name, task, completed + snoozed + discarded AS passed, failed + retried AS failed, ran_seconds
    FROM skipqueue_rollup
    WHERE span = %(span)s AND starts_at >= to_timestamp(%(since)s)
    ORDER BY starts_at DESC
    LIMIT 50000
),
slow AS MATERIALIZED (
    SELECT
        task, queue_name, sum(passed + failed) AS attempts, sum(failed) AS failed,
        sum(ran_seconds) / sum(passed + failed) AS mean
    FROM recent
    WHERE task <> '' AND (%(queue_name)s = '' OR queue_name = %(queue_name)s)
    GROUP BY task, queue_name
    HAVING sum(passed + failed) > 0
    ORDER BY mean DESC
    LIMIT %(limit)s
)
SELECT
    task, queue_name, attempts, failed, mean,
    ARRAY (
        SELECT ARRAY[place, sum(number)]
        FROM skipqueue_rollup AS rollup, unnest(rollup.ran) WITH ORDINALITY AS bucket (number, place)
        WHERE
            rollup.span = %(span)s
            AND rollup.queue_name = slow.queue_name
            AND rollup.task = slow.task
            AND rollup.starts_at >= to_timestamp(%(since)s)
            AND number > 0
        GROUP BY place
    )
FROM slow
"""

# cards → the jobs that were recovered from dead workers, of a queue or of all: in the last 24 hours and in the last
# one, by the roll-ups of 1440 minutes. Index: the primary key of the roll-ups.
RECOVERED = """
SELECT
    COALESCE(sum(recovered), 0)::bigint,
    COALESCE(sum(recovered) FILTER (WHERE starts_at >= statement_timestamp() - interval '1 hour'), 0)::bigint
FROM skipqueue_rollup
WHERE
    span = 60
    AND queue_name = %(queue_name)s
    AND task = ''
    AND starts_at >= statement_timestamp() - interval '24 hours'
"""

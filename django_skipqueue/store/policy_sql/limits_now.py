"""Read the keys of limits and sequences as they are now, by a few probes of an index: for pages, commands, metrics.

`admission.sql` says which jobs of a key hold a permit, and which wait for one, and why they are found by `<=`.
"""

# pages, commands, metrics, doctor, alerts → the sequences that have halted and keep jobs waiting, the longest first:
# the key, the failed job, and the seconds since it failed. Of all failed jobs that halt a sequence, `limit` are looked
# at, those first that failed first. Index: halted, and limit_waiting once for each.
HALTED_KEYS = """
SELECT failed.limit_key, failed.id, date_part('epoch', statement_timestamp() - failed.finished_at)
FROM (
    SELECT limit_key, id, finished_at
    FROM skipqueue_job
    WHERE status = 'failed' AND limit_kind = 'halting'
    ORDER BY finished_at, id
    LIMIT %(limit)s
) AS failed
WHERE EXISTS (
    SELECT
    FROM skipqueue_job
    WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key = failed.limit_key
)
ORDER BY failed.finished_at, failed.id
"""

# pages, commands, metrics → at most `limit` keys with waiting jobs, alphabetically after `after`; with `is_from` also
# that key itself. Index: limit_waiting, once for each key.
WAITING_KEYS = """
WITH RECURSIVE waiting AS (
    SELECT
        CASE
            WHEN %(is_from)s THEN (
                SELECT limit_key
                FROM skipqueue_job
                WHERE
                    status <= 'blocked'
                    AND awaits_jobs IS NULL
                    AND has_permit IS NULL
                    AND limit_key >= %(after)s::text
                ORDER BY limit_key
                LIMIT 1
            )
            ELSE (
                SELECT limit_key
                FROM skipqueue_job
                WHERE
                    status <= 'blocked'
                    AND awaits_jobs IS NULL
                    AND has_permit IS NULL
                    AND limit_key > %(after)s::text
                ORDER BY limit_key
                LIMIT 1
            )
        END AS key
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key > waiting.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.key IS NOT NULL
)
SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s
"""

# dashboard → at most `most` keys of the jobs that were blocked first. Of all blocked jobs, `limit` are looked at.
# Index: blocked.
FIRST_BLOCKED_KEYS = """
SELECT limit_key
FROM (
    SELECT id, limit_key, awaits_jobs, has_permit
    FROM skipqueue_job
    WHERE status = 'blocked'
    ORDER BY id
    LIMIT %(limit)s
) AS job
WHERE limit_key IS NOT NULL AND awaits_jobs IS NULL AND has_permit IS NULL
GROUP BY limit_key
ORDER BY min(id)
LIMIT %(most)s
"""

# pages, commands → for each of these keys that has waiting jobs: the key; the id, the task and the arguments of the
# next job; the kind of the limit and its capacity, NULL for any number; the number of jobs that hold a permit, and that
# of those that wait, both counted up to `limit`; the seconds since the first of these was due. Index: limit_waiting and
# limit_held, once for each key; for the key of a queue the primary key of queues.
KEYS_NOW = """
SELECT
    key.name, head.id, head.task, head.args::text, head.kwargs::text, head.limit_kind,
    NULLIF(COALESCE(
        CASE
            WHEN starts_with(key.name, 'queue:')
            THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
        END,
        head.capacity
    ), 0),
    held.number, waiting.number, date_part('epoch', statement_timestamp() - waiting.since)
FROM
    unnest((SELECT %(keys)s::text[])) WITH ORDINALITY AS key (name, place),
    LATERAL (
        SELECT id, task, args, kwargs, limit_kind, capacity
        FROM skipqueue_job
        WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key = key.name
        ORDER BY
            (CASE
                WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                ELSE 0
            END), id
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND (
                    (status IN ('queued', 'running') AND has_permit IS NOT FALSE)
                    OR (
                        (started_at IS NOT NULL OR attempts > 0)
                        AND limit_kind IN ('sequence', 'halting')
                        AND status = 'scheduled'
                    )
                    OR (limit_kind = 'halting' AND status = 'failed')
                    OR (status = 'blocked' AND has_permit)
                )
            LIMIT %(limit)s
        ) AS job
    ) AS held,
    LATERAL (
        SELECT count(*) AS number, min(run_after) AS since
        FROM (
            SELECT run_after
            FROM skipqueue_job
            WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key = key.name
            ORDER BY
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END), id
            LIMIT %(limit)s
        ) AS job
    ) AS waiting
ORDER BY key.place
"""

# pages, commands, metrics → the number of blocked jobs by queue. Of all blocked jobs, `limit` are looked at, those
# first that were enqueued first. Index: blocked.
BLOCKED_BY_QUEUE = """
SELECT queue_name, count(*)
FROM (
    SELECT queue_name FROM skipqueue_job WHERE status = 'blocked' ORDER BY id LIMIT %(limit)s
) AS job
GROUP BY queue_name
"""

# metrics, where more jobs are blocked than `BLOCKED_BY_QUEUE` looks at → how many the planner expects. Reads no row.
EXPECTED_BLOCKED = """
EXPLAIN (FORMAT JSON) SELECT FROM skipqueue_job WHERE status = 'blocked'
"""

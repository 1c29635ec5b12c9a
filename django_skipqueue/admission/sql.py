"""Admit jobs by the limits of their keys.

A key's permits are held by its jobs in the index `limit_held`: those that are queued or running; in a sequence also the
one that waits for its next attempt (a lease above 0: it was claimed before) and, if the sequence halts, the one that
failed. The others wait as `blocked`, in the index `limit_waiting`, unless they
still wait for other jobs (`awaits_jobs`).

Rule: only `ADMIT_BY_KEY` raises the number of held permits. It runs in the transaction of `LOCK_KEYS`, after it, and
only for the keys that this has locked; each of the two has a snapshot of its own, so the second sees what the previous
holder of the lock has done. Neither waits for a lock, so neither can be part of a deadlock.
"""

# worker in the transaction of a settle, before ADMIT_BY_KEY; supervisor; enqueue, after the commit → the keys that
# another transaction has locked, and those that are locked now, for ADMIT_BY_KEY. The keys are those of the jobs `ids`,
# and `keys`. A lock is one of 1,024 advisory locks, until the end of the transaction: rows of a table of keys would
# have to be inserted and deleted, and a lock for each key could fill PostgreSQL's table of locks. Two keys with the
# same lock only wait for each other. At a higher isolation level no key is locked: ADMIT_BY_KEY would not see what the
# previous holder of the lock has done. The array is a subquery, so that the planner does not see its
# length: with that, it reads a small table whole. Index: the primary key.
LOCK_KEYS = """
WITH wanted AS MATERIALIZED (
    SELECT limit_key AS key
    FROM skipqueue_job
    WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND limit_key IS NOT NULL
    UNION
    SELECT unnest((SELECT %(keys)s::text[]))
),
lock AS MATERIALIZED (
    SELECT
        slot,
        CASE
            WHEN current_setting('transaction_isolation') = 'read committed'
            THEN pg_try_advisory_xact_lock(1397442896, slot)
            ELSE false
        END AS is_ours
    FROM (SELECT DISTINCT hashtext(key) & 1023 AS slot FROM wanted) AS slots
)
SELECT
    array_agg(wanted.key) FILTER (WHERE NOT lock.is_ours) AS missed,
    set_config(
        'skipqueue.locked_keys', COALESCE(array_agg(wanted.key) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023
"""

# the same, after LOCK_KEYS → the number of admitted jobs, by queue. Of each locked key as many jobs are admitted as
# permits are free: the highest priority first, then the first enqueued. In a sequence the next is the one that was
# tried before, else the first enqueued; it is not passed over, even if its row is locked.
# Index: limit_held and limit_waiting, once for each key.
ADMIT_BY_KEY = """
WITH chosen AS MATERIALIZED (
    SELECT job.place
    FROM
        unnest((SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[])) AS key (name),
        LATERAL (
            SELECT id, capacity, limit_kind
            FROM skipqueue_job
            WHERE status = 'blocked' AND awaits_jobs IS NULL AND limit_key = key.name
            ORDER BY
                (CASE WHEN limit_kind = 'concurrency' THEN -priority WHEN lease > 0 THEN -1 ELSE 0 END), id
            LIMIT 1
        ) AS head,
        LATERAL (
            SELECT count(*) AS number
            FROM skipqueue_job
            WHERE
                limit_key = key.name
                AND (
                    status IN ('queued', 'running')
                    OR (lease > 0 AND limit_kind IN ('sequence', 'halting') AND status = 'scheduled')
                    OR (limit_kind = 'halting' AND status = 'failed')
                )
        ) AS held,
        LATERAL (
            SELECT ctid AS place, id
            FROM skipqueue_job
            WHERE status = 'blocked' AND awaits_jobs IS NULL AND limit_key = key.name
            ORDER BY
                (CASE WHEN limit_kind = 'concurrency' THEN -priority WHEN lease > 0 THEN -1 ELSE 0 END), id
            LIMIT GREATEST(head.capacity - held.number, 0)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE head.limit_kind = 'concurrency' OR job.id = head.id
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = 'queued'
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name
)
SELECT queue_name, count(*) FROM admitted GROUP BY queue_name
"""

# supervisor, worker before a drain ends → at most `limit` keys with blocked jobs, alphabetically after `after`, and
# whether a permit of each is free. Locks nothing. Index: limit_waiting and limit_held, once for each key.
BLOCKED_KEYS = """
WITH RECURSIVE waiting AS (
    (
        SELECT limit_key AS key
        FROM skipqueue_job
        WHERE status = 'blocked' AND awaits_jobs IS NULL AND limit_key > %(after)s::text
        ORDER BY limit_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT limit_key
        FROM skipqueue_job
        WHERE status = 'blocked' AND awaits_jobs IS NULL AND limit_key > waiting.key
        ORDER BY limit_key
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.key IS NOT NULL
),
found AS MATERIALIZED (SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s)
SELECT
    found.key,
    (
        SELECT capacity
        FROM skipqueue_job
        WHERE status = 'blocked' AND awaits_jobs IS NULL AND limit_key = found.key
        ORDER BY
            (CASE WHEN limit_kind = 'concurrency' THEN -priority WHEN lease > 0 THEN -1 ELSE 0 END), id
        LIMIT 1
    ) > (
        SELECT count(*)
        FROM skipqueue_job
        WHERE
            limit_key = found.key
            AND (
                status IN ('queued', 'running')
                OR (lease > 0 AND limit_kind IN ('sequence', 'halting') AND status = 'scheduled')
                OR (limit_kind = 'halting' AND status = 'failed')
            )
    ) AS is_free
FROM found
"""

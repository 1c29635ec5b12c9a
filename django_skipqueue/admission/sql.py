"""Admit jobs by the limits of their keys.

A key's permits are held by its jobs in the index `limit_held`: those that are queued or running; in a sequence also the
one that waits for its next attempt and, if the sequence halts, the one that failed; and those that only wait for their
rate (`has_permit`). The others wait as `blocked`, in the index `limit_waiting`, unless they still wait for other jobs
(`awaits_jobs`).

A job has begun if it has `started_at`, which a release removes, or attempts, which a manual retry sets to 0: neither
does both. A new lease does not say so: a job gets one as well if it is discarded, or released, before it has begun.

How many permits a key has is a column of its jobs. The key of a queue (`queue:mail`) has as many as the row of the
queue says, if somebody has changed it there; 0 there, or NULL in a job, is any number.

A key of the kind `fair` has no limit of what runs. Few of its jobs are queued at a time: as many as run, and two for
each that has just ended, so a key alone soon has all workers. A job that is admitted becomes due at that moment: else
those of a key whose jobs were enqueued long before would still be claimed before all others.

Rule: only `ADMIT_BY_KEY`, `CHOOSE_BY_KEY` with the claim that follows it, and `ADMIT_LONE` of `lone_sql` raise the
number of held permits. The first two run in the transaction of `LOCK_KEYS`, after it, the last in that of `LOCK_KEY`,
and only for the keys that this has locked; each statement has a snapshot of its own, so the second one sees what the
previous holder of the lock has done. None waits for a lock, so none can be part of a deadlock.

The jobs of a key that wait are found by `status <= 'blocked'`. It means the same as `=`, for no status is before that
in the alphabet. But `=` would also fit the index `blocked`, which has the jobs of all keys in the order of their ids.
PostgreSQL reads that whole for each key if no job was blocked when the statistics were last gathered: it expects none.
"""

# worker in the transaction of a settle, before ADMIT_BY_KEY; supervisor; enqueue, after the commit → the keys that
# another transaction has locked, and those that are locked now, for ADMIT_BY_KEY, with the number of jobs of each that
# have ended, and whether the permit of a sequence is free: this transaction itself has ended the job that held it. That
# the row was written here, and not by a worker that was quicker, is seen by its `xmin`.
# The keys are those of the jobs `ids`, which have just ended or been claimed, and `keys`. A lock is one of
# 1,024 advisory locks, until the end of the transaction: rows of a table of keys would have to be inserted and deleted,
# and a lock for each key could fill PostgreSQL's table of locks. Two keys with the same lock only wait for each other.
# At a higher isolation level no key is locked: ADMIT_BY_KEY would not see what the previous holder of the lock has
# done. The array is a subquery, so that the planner does not see its length: with that, it reads a small table whole.
# Index: the primary key.
LOCK_KEYS = """
WITH wanted AS MATERIALIZED (
    SELECT key, sum(ended)::integer AS ended, bool_or(is_free) AS is_free
    FROM (
        SELECT
            limit_key AS key,
            CASE WHEN status = 'running' THEN 0 ELSE 1 END AS ended,
            (
                limit_kind IN ('sequence', 'halting')
                AND (status IN ('completed', 'discarded') OR (status = 'failed' AND limit_kind = 'sequence'))
                AND xmin = pg_current_xact_id_if_assigned()::xid
            ) IS TRUE AS is_free
        FROM skipqueue_job
        WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND limit_key IS NOT NULL
        UNION ALL
        SELECT unnest((SELECT %(keys)s::text[])), 0, false
    ) AS touched
    GROUP BY key
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
    ) || set_config(
        'skipqueue.ended_jobs', COALESCE(array_agg(wanted.ended) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) || set_config(
        'skipqueue.free_keys', COALESCE(array_agg(wanted.is_free) FILTER (WHERE lock.is_ours), '{}')::text, true
    ) AS locked
FROM wanted JOIN lock ON lock.slot = hashtext(wanted.key) & 1023
"""

# enqueue after the commit, supervisor; outside of a transaction, before LOCK_KEYS → the commit does not wait for the
# disk: a job whose admission is lost in a crash of the server is blocked as before. Reads no table.
ADMIT_WITHOUT_WAITING = "SELECT set_config('synchronous_commit', 'off', true)"

# The beginning of two statements. Of each locked key as many jobs are chosen as permits are free: the highest priority
# first, then the first enqueued. In a sequence the next is the one that has begun before, else the first enqueued; it
# is not passed over, even if its row is locked. At most a thousand of a key: more permits may be free after a limit was
# removed. Those that hold one are not counted if there is no limit, nor beyond it. That LIMIT also has the planner walk
# limit_held instead of making a bitmap of it: only a walk marks the entries of finished jobs as dead, so that the next
# one passes them. A bitmap reads the rows of all of them each time.
# The jobs of paused queues are passed over, so that a permit goes to a job that a worker may start. But a sequence
# keeps its order.
# Index: limit_held and limit_waiting, once for each key; for the key of a queue the primary key of queues. The table of
# queues is read whole: it has a row for each queue that was paused or limited.
_CHOSEN = """WITH paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
),
chosen AS MATERIALIZED (
    SELECT job.place, job.queue_name, job.rate_key
    FROM
        paused,
        unnest(
            (SELECT NULLIF(current_setting('skipqueue.locked_keys', true), '')::text[]),
            (SELECT NULLIF(current_setting('skipqueue.ended_jobs', true), '')::integer[]),
            (SELECT NULLIF(current_setting('skipqueue.free_keys', true), '')::boolean[])
        ) AS key (name, ended, is_free),
        LATERAL (
            SELECT
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank,
                id, capacity, limit_kind
            FROM skipqueue_job
            WHERE
                status <= 'blocked'
                AND awaits_jobs IS NULL
                AND has_permit IS NULL
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
            ORDER BY 1, id
            LIMIT 1
        ) AS head,
        LATERAL (
            SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
            FROM (
                SELECT CASE
                    WHEN starts_with(key.name, 'queue:')
                    THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(key.name, 7))
                END AS concurrency
            ) AS changed
        ) AS limited,
        LATERAL (
            SELECT count(*) AS number, count(*) FILTER (WHERE status = 'running') AS running
            FROM (
                SELECT status
                FROM skipqueue_job
                WHERE
                    limit_key = key.name
                    AND limited.permits IS NOT NULL
                    AND key.is_free IS NOT TRUE
                    AND (
                        status IN ('queued', 'running')
                        OR (status = 'blocked' AND has_permit)
                        OR (
                            (started_at IS NOT NULL OR attempts > 0)
                            AND limit_kind IN ('sequence', 'halting')
                            AND status = 'scheduled'
                        )
                        OR (limit_kind = 'halting' AND status = 'failed')
                    )
                LIMIT CASE WHEN head.limit_kind <> 'fair' THEN limited.permits END
            ) AS holder
        ) AS held,
        LATERAL (
            SELECT ctid AS place, id, queue_name, rate_key
            FROM skipqueue_job
            WHERE
                status <= 'blocked'
                AND awaits_jobs IS NULL
                AND has_permit IS NULL
                AND limit_key = key.name
                AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
                AND (
                    (CASE
                        WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                        WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                        ELSE 0
                    END),
                    id
                ) >= (head.rank, head.id)
            ORDER BY
                (CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END), id
            LIMIT LEAST(1000, GREATEST(0, CASE
                WHEN head.limit_kind = 'fair'
                THEN GREATEST(head.capacity, held.running + 2 * key.ended) - (held.number - held.running)
                ELSE COALESCE(limited.permits - held.number, 1000)
            END))
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    WHERE head.limit_kind IN ('concurrency', 'fair') OR job.id = head.id
)"""

# the same, after LOCK_KEYS → by queue: the number of admitted jobs, and the keys of the rates that jobs with a permit
# wait for now. Index: that of `_CHOSEN`.
ADMIT_BY_KEY = f"""
{_CHOSEN},
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = CASE WHEN job.rate_key IS NOT NULL THEN 'blocked' ELSE 'queued' END,
        has_permit = CASE WHEN job.rate_key IS NOT NULL THEN true END,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING job.queue_name, job.status, job.rate_key
)
SELECT
    queue_name, count(*) FILTER (WHERE status = 'queued'), array_agg(rate_key) FILTER (WHERE status = 'blocked')
FROM admitted
GROUP BY queue_name
"""  # noqa: S608 (literals)

# worker that claims as well, after LOCK_KEYS → the same. It locks the jobs, and writes only those that wait for their
# rate now: CLAIM_OR_ADMIT, in the same transaction, has the others run here or queued. Index: that of `_CHOSEN`.
CHOOSE_BY_KEY = f"""
{_CHOSEN},
rated AS (
    UPDATE skipqueue_job AS job
    SET has_permit = true,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen WHERE rate_key IS NOT NULL))
)
SELECT
    queue_name,
    count(*) FILTER (WHERE rate_key IS NULL),
    array_agg(rate_key) FILTER (WHERE rate_key IS NOT NULL),
    set_config(
        'skipqueue.chosen_jobs',
        COALESCE((SELECT array_agg(place) FROM chosen WHERE rate_key IS NULL), '{{}}')::text,
        true
    )
FROM chosen
GROUP BY queue_name
"""  # noqa: S608 (literals)

# supervisor, worker before a drain ends → at most `limit` keys with blocked jobs, alphabetically after `after`, and
# whether a permit of each is free. Without the keys of which only paused queues have jobs. Locks nothing.
# Index: limit_waiting and limit_held, once for each key; for the key of a queue the primary key of queues.
BLOCKED_KEYS = """
WITH RECURSIVE waiting AS (
    (
        SELECT limit_key AS key
        FROM skipqueue_job
        WHERE status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL AND limit_key > %(after)s::text
        ORDER BY limit_key
        LIMIT 1
    )
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
),
found AS MATERIALIZED (SELECT key FROM waiting WHERE key IS NOT NULL LIMIT %(limit)s),
paused AS MATERIALIZED (
    SELECT ARRAY (
        SELECT name
        FROM skipqueue_queue
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
    ) AS names
)
SELECT
    found.key,
    limited.permits IS NULL OR limited.permits > (
        SELECT CASE
            WHEN head.limit_kind = 'fair' THEN
                count(*) FILTER (WHERE status = 'queued')
                - GREATEST(count(*) FILTER (WHERE status = 'running') - head.capacity, 0)
            ELSE count(*)
        END
        FROM skipqueue_job
        WHERE
            limit_key = found.key
            AND limited.permits IS NOT NULL
            AND (
                status IN ('queued', 'running')
                OR (status = 'blocked' AND has_permit)
                OR (
                    (started_at IS NOT NULL OR attempts > 0)
                    AND limit_kind IN ('sequence', 'halting')
                    AND status = 'scheduled'
                )
                OR (limit_kind = 'halting' AND status = 'failed')
            )
    ) AS is_free
FROM
    found,
    paused,
    LATERAL (
        SELECT capacity, limit_kind
        FROM skipqueue_job
        WHERE
            status <= 'blocked'
            AND awaits_jobs IS NULL
            AND has_permit IS NULL
            AND limit_key = found.key
            AND (queue_name <> ALL (paused.names) OR limit_kind IN ('sequence', 'halting'))
        ORDER BY
            (CASE
                WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                ELSE 0
            END), id
        LIMIT 1
    ) AS head,
    LATERAL (
        SELECT CASE WHEN concurrency IS NULL THEN head.capacity ELSE NULLIF(concurrency, 0) END AS permits
        FROM (
            SELECT CASE
                WHEN starts_with(found.key, 'queue:')
                THEN (SELECT queue.concurrency FROM skipqueue_queue AS queue WHERE name = substr(found.key, 7))
            END AS concurrency
        ) AS changed
    ) AS limited
ORDER BY found.key
"""

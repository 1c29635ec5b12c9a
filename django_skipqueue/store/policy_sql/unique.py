"""Unique keys: which job holds one, and the enqueues that find it taken.

A job holds its key as the predicate of the unique index says, which every statement here repeats. By `unique_seconds`:
NULL: until the job is finished. 0: until a worker claims it for the first time; a lease never becomes 0 again, so no
retry, release or recovery takes the key back. Other seconds: for so long from the enqueue, and until the job is
finished; the next who needs the key then writes NULL.
"""

from ..sql.gates import entering

# enqueue_many, calls with unique keys → one row: the ids of the inserted jobs, ascending; their unique keys in the
# order of the ids, or NULL if every call was inserted, since ids ascend in the order of the calls; the number of those
# that are queued, and the seconds until the first is due. Index: unique. `unique_keys` has an element for each call;
# NULL: a call without a key. The calls are sorted by key, so that two batches with the same keys wait for each other
# and never deadlock. A call is not inserted if its key is taken, by a job that holds it or by an earlier call of the
# batch.
ENQUEUE_MANY_UNIQUE = entering(
    """
WITH inserted AS (
    INSERT INTO skipqueue_job AS job
        (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, unique_seconds, timeout,
        retention, metadata, batch_id, awaits_jobs, limit_key, limit_kind, capacity, rate_key, rate_interval,
        rate_burst)
    SELECT
        %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
        {status},
        %(priority)s, %(max_attempts)s, due.run_after, call.unique_key, %(unique_seconds)s::float8, %(timeout)s,
        %(retention)s::jsonb, %(metadata)s::jsonb, %(batch_id)s::bigint, %(awaits_jobs)s::boolean,
        call.limit_key, CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
        CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
        call.rate_key, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
        CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
    FROM
        ROWS FROM (
            string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]),
            unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
        ) AS call (args, kwargs, unique_key, limit_key, rate_key),
        (
            SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
            AS run_after
        ) AS due
    ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL
        AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
    DO NOTHING
    RETURNING id, unique_key, status, run_after
)
SELECT
    array_agg(id ORDER BY id),
    CASE WHEN count(*) < %(number)s THEN array_agg(unique_key ORDER BY id) END,
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted
""",
    column="%({})s",
    run_after="due.run_after",
    limit_key="call.limit_key",
    rate_key="call.rate_key",
)

# enqueue and enqueue_many that replace, after a conflict → the holders that wait, which now have the arguments of the
# call: unique_key, id, status, run_after, enqueued_at, and the seconds until it is due. Each key is there once. Not by
# ON CONFLICT DO UPDATE: that locks the row before it looks at the condition, and so would keep a running job locked
# until the caller's commit. Index: unique, the primary key.
REPLACE_WAITING = entering(
    """
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND unique_key IS NOT NULL
        AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
        AND finished_at IS NULL
        AND status <> 'running'
    ORDER BY unique_key
    FOR NO KEY UPDATE
)
UPDATE skipqueue_job AS job
SET (args, kwargs, run_after) = (call.args::jsonb, call.kwargs::jsonb, due.run_after),
    status = CASE WHEN job.awaits_jobs AND {status} = 'queued' THEN 'blocked' ELSE {status} END,
    limit_key = call.limit_key,
    limit_kind = CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
    capacity = CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
    rate_key = call.rate_key,
    rate_interval = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
    rate_burst = CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END,
    has_permit = NULL
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[]),
        unnest(%(limit_keys)s::text[]), unnest(%(rate_keys)s::text[])
    ) AS call (args, kwargs, unique_key, limit_key, rate_key),
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
WHERE job.id = ANY (ARRAY (SELECT id FROM waiting)) AND job.unique_key = call.unique_key
RETURNING
    job.unique_key, job.id, job.status, job.run_after, job.enqueued_at,
    extract(epoch FROM job.run_after - statement_timestamp())::float8
""",
    column="%({})s",
    run_after="due.run_after",
    limit_key="call.limit_key",
    rate_key="call.rate_key",
)

# enqueue_many that replaces several → the same, without the holders that somebody has locked. Index: unique, the
# primary key.
REPLACE_UNLOCKED = REPLACE_WAITING.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")

# enqueue_many, after a conflict → the keys that jobs hold, each with the id of its job, whether it is finished, whether
# it waits, and whether it waits for its first attempt. Index: unique.
UNIQUE_KEY_HOLDERS = """
SELECT
    unique_key, id, finished_at IS NOT NULL AS is_finished,
    finished_at IS NULL AND status <> 'running' AS waits,
    finished_at IS NULL AND lease = 0 AS is_unclaimed
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
"""

# enqueue and enqueue_many that ask for a key until the start, after a conflict → the keys of the holders that have not
# been claimed, with id, queue and status. Locks their rows until the caller's commit, in the order of the keys: no
# worker claims one before that, so the run sees what the caller has written. Several callers share the lock. Index:
# unique.
LOCK_WAITING_HOLDERS = """
SELECT unique_key, id, queue_name, status
FROM skipqueue_job
WHERE
    unique_key = ANY (%(unique_keys)s::text[])
    AND unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
    AND finished_at IS NULL
    AND lease = 0
ORDER BY unique_key
FOR SHARE
"""

# enqueue_many that asks for several keys until the start → the same, without the holders that somebody writes. Index:
# unique.
LOCK_UNLOCKED_HOLDERS = LOCK_WAITING_HOLDERS.replace("FOR SHARE", "FOR SHARE SKIP LOCKED")

# enqueue, enqueue_many, retry, after a conflict with a finished job → the keys that are free now: their jobs are
# finished, and their time is over. Locks in the order of the keys. Index: unique.
FREE_UNIQUE_KEYS = """
WITH over AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        unique_key = ANY (%(unique_keys)s::text[])
        AND unique_key IS NOT NULL
        AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
        AND finished_at IS NOT NULL
        AND enqueued_at + make_interval(secs => unique_seconds) <= statement_timestamp()
    ORDER BY unique_key
    FOR NO KEY UPDATE
)
UPDATE skipqueue_job AS job
SET unique_seconds = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM over))
RETURNING job.unique_key
"""

# retry, after a conflict → the unique keys of these jobs. Index: the primary key.
UNIQUE_KEYS_OF = """
SELECT DISTINCT unique_key
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('failed', 'discarded') AND unique_key IS NOT NULL
"""

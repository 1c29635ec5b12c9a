"""Insert jobs."""

from .gates import entering

# The beginning of three statements. A delay counts from now. A job that is not due yet enters as scheduled.
# VALUES and few returned columns take half the time of a SELECT that computes the due time once, with RETURNING *.
_INSERT = entering(
    """
INSERT INTO skipqueue_job AS job
    (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, unique_seconds, timeout,
    retention, metadata, batch_id, awaits_jobs, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    {status},
    %(priority)s, %(max_attempts)s,
    COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    %(unique_key)s, %(unique_seconds)s, %(timeout)s, %(retention)s::jsonb, %(metadata)s::jsonb,
    %(batch_id)s, %(awaits_jobs)s, %(limit_key)s, %(limit_kind)s, %(capacity)s,
    %(rate_key)s, %(rate_interval)s, %(rate_burst)s
)
""",
    column="%({})s",
    run_after="COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))",
)

# enqueue → the columns that the database has set; no row if a job holds the unique key. Index: unique.
ENQUEUE = f"""
{_INSERT}
ON CONFLICT (unique_key)
WHERE unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))
DO NOTHING
RETURNING id, status, run_after, enqueued_at, true AS is_new
"""

# enqueue without a unique key, outside of a transaction → the id and the time of the enqueue, and what was set, as the
# second of four results. The client sends all of it in one message: the INSERT, its commit, and the NOTIFY after it,
# in a transaction of its own. A setting of the session keeps what was inserted, under a text that is different in each
# call; PostgreSQL takes the setting back if the INSERT is not committed.
ENQUEUE_AND_NOTIFY = f"""
BEGIN;
{_INSERT}
RETURNING id, enqueued_at, set_config('skipqueue.inserted', concat_ws('|', %(call)s, id, enqueued_at), false);
COMMIT;
SELECT pg_notify('skipqueue', %(queue_name)s) FROM set_config('synchronous_commit', 'off', true)
"""  # noqa: S608 (of literals)

# enqueue, after an error of ENQUEUE_AND_NOTIFY → as that one; no row if the job is not committed, or if a pooler has
# moved the client to another session. Reads no table.
INSERTED = """
SELECT part[2]::bigint, part[3]::timestamptz
FROM string_to_array(current_setting('skipqueue.inserted', true), '|') AS part
WHERE part[1] = %(call)s
"""

# enqueue_many, calls without unique keys → one row: the ids of the inserted jobs, the number of those that are queued,
# and the seconds until all are due. `args` and `kwargs` have a line for each call: encoded JSON contains no line break.
# `limit_keys` and `rate_keys` have an element for each call, or none at all: NULL.
# There is no ON CONFLICT: it makes PostgreSQL insert each row tentatively and confirm it, which takes a sixth longer.
ENQUEUE_MANY = entering(
    """
WITH inserted AS (
    INSERT INTO skipqueue_job
        (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, timeout, retention, metadata,
        batch_id, awaits_jobs, limit_key, limit_kind, capacity, rate_key, rate_interval, rate_burst)
    SELECT
        %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
        {status},
        %(priority)s, %(max_attempts)s, due.run_after, %(timeout)s, %(retention)s::jsonb, %(metadata)s::jsonb,
        %(batch_id)s::bigint, %(awaits_jobs)s::boolean,
        call.limit_key, CASE WHEN call.limit_key IS NOT NULL THEN %(limit_kind)s::text END,
        CASE WHEN call.limit_key IS NOT NULL THEN %(capacity)s::smallint END,
        call.rate_key, CASE WHEN call.rate_key IS NOT NULL THEN %(rate_interval)s::float8 END,
        CASE WHEN call.rate_key IS NOT NULL THEN %(rate_burst)s::smallint END
    FROM
        ROWS FROM (
            string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(limit_keys)s::text[]),
            unnest(%(rate_keys)s::text[])
        ) AS call (args, kwargs, limit_key, rate_key),
        (
            SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
            AS run_after
        ) AS due
    RETURNING id, status, run_after
)
SELECT
    array_agg(id),
    count(*) FILTER (WHERE status = 'queued'),
    extract(epoch FROM min(run_after) - statement_timestamp())::float8
FROM inserted
""",
    column="%({})s",
    run_after="due.run_after",
    limit_key="call.limit_key",
    rate_key="call.rate_key",
)

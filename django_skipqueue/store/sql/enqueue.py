"""Inserting jobs."""

from .gates import entering

# enqueue → what the database decides of the row, or nothing where the unique key is taken by a job that is not
# finished. Index: unique. A time to run given as a delay is counted from now; what is not due yet waits as scheduled.
# One row of values, and few columns back: half the time of a SELECT that names the time once, and of RETURNING *.
ENQUEUE = entering(
    """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, timeout, retention,
    metadata)
VALUES (
    %(queue_name)s, %(task)s, %(args)s::jsonb, %(kwargs)s::jsonb,
    {status},
    %(priority)s, %(max_attempts)s,
    COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    %(unique_key)s, %(timeout)s, %(retention)s::jsonb, %(metadata)s::jsonb
)
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
RETURNING id, status, run_after, enqueued_at
""",
    column="%({})s",
    run_after="COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))",
)

# enqueue_many, of calls without unique keys → ids and status of the rows inserted, and the seconds until they are due.
# `args` and `kwargs` have a line for each call: JSON has no line break within. No ON CONFLICT, for which every row is
# inserted first on trial and then confirmed (a sixth of the time), and one row back.
ENQUEUE_MANY = entering(
    """
WITH inserted AS (
    INSERT INTO skipqueue_job
        (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, timeout, retention, metadata)
    SELECT
        %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
        {status},
        %(priority)s, %(max_attempts)s, due.run_after, %(timeout)s, %(retention)s::jsonb, %(metadata)s::jsonb
    FROM
        ROWS FROM (string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10))) AS call (args, kwargs),
        (
            SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
            AS run_after
        ) AS due
    RETURNING id, status, run_after
)
SELECT array_agg(id), min(status), extract(epoch FROM min(run_after) - statement_timestamp())::float8 FROM inserted
""",
    column="%({})s",
    run_after="due.run_after",
)

# enqueue_many, where calls have unique keys → id, unique_key and status of each row inserted, in the order of calls,
# and the seconds until it is due. Index: unique. The same lines, and `unique_keys`, an element for each; NULL: a call
# without. Those with keys are in the order of these, so that two batches of the same keys wait for each other and never
# deadlock. Of two calls with one key, and of one whose key is taken, nothing is inserted.
ENQUEUE_MANY_UNIQUE = entering(
    """
INSERT INTO skipqueue_job
    (queue_name, task, args, kwargs, status, priority, max_attempts, run_after, unique_key, timeout, retention,
    metadata)
SELECT
    %(queue_name)s, %(task)s, call.args::jsonb, call.kwargs::jsonb,
    {status},
    %(priority)s, %(max_attempts)s, due.run_after, call.unique_key, %(timeout)s, %(retention)s::jsonb,
    %(metadata)s::jsonb
FROM
    ROWS FROM (
        string_to_table(%(args)s, chr(10)), string_to_table(%(kwargs)s, chr(10)), unnest(%(unique_keys)s::text[])
    ) AS call (args, kwargs, unique_key),
    (
        SELECT COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
        AS run_after
    ) AS due
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
RETURNING id, unique_key, status, extract(epoch FROM run_after - statement_timestamp())::float8
""",
    column="%({})s",
    run_after="due.run_after",
)

# enqueue, enqueue_many: after a conflict, the keys that are held, each with the id of the job. Index: unique.
UNIQUE_KEY_HOLDERS = """
SELECT unique_key, id
FROM skipqueue_job
WHERE unique_key = ANY (%(unique_keys)s::text[]) AND finished_at IS NULL
"""

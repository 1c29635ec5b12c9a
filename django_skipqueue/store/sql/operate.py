"""The verbs of operators. Each notes in the row what it did: in `operations`, the newest 50."""

from .gates import entering

# operators → id, queue and status of the failed and discarded jobs put back into their queues, with a fresh set of
# attempts; at once, or spread at random over the seconds that `over` says. A job whose unique key is alive again
# stays as it is; of several that share a key the newest is taken. Index: the primary key.
RETRY = entering(
    """
WITH chosen AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE
        job.id = ANY (%(ids)s::bigint[])
        AND job.status IN ('failed', 'discarded')
        AND NOT EXISTS (
            SELECT FROM skipqueue_job AS alive
            WHERE alive.unique_key = job.unique_key AND alive.finished_at IS NULL
        )
        AND NOT EXISTS (
            SELECT FROM skipqueue_job AS twin
            WHERE
                twin.id = ANY (%(ids)s::bigint[])
                AND twin.unique_key = job.unique_key
                AND twin.id > job.id
                AND twin.status IN ('failed', 'discarded')
        )
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = {status},
    lease = job.lease + 1,
    attempts = 0,
    run_after = statement_timestamp() + make_interval(secs => random() * %(over)s::float8),
    finished_at = NULL,
    deaths = NULL,
    unknown_since = NULL,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'retry', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name, job.status
""",
    column="job.{}",
    run_after="statement_timestamp() + make_interval(secs => %(over)s::float8)",
)

# operators → the ids of the scheduled and queued jobs that were discarded, with the reason. Index: the primary key.
DISCARD = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND status <> 'running'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    lease = job.lease + 1,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'discard', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

# operators → the ids of the jobs that were cancelled, with the reason: discarded whatever they are at, as long as they
# are not finished. The new lease takes a running one from its worker. Index: the primary key.
CANCEL = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'discarded',
    lease = job.lease + 1,
    locked_at = NULL,
    finished_at = statement_timestamp(),
    last_error = %(last_error)s,
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'cancel', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

# operators → id and queue of the scheduled jobs, retries among them, that may be claimed now. One that is overdue keeps
# its time, and with it its place. Index: the primary key.
RUN_NOW = entering(
    """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'scheduled'
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = {status},
    run_after = LEAST(job.run_after, statement_timestamp()),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'run_now', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id, job.queue_name
""",
    column="job.{}",
    past="time",
)

# operators → the ids of the scheduled and queued jobs that now wait for a later time; one that is due later anyway
# stays as it is. A time given as a delay is counted from now. Index: the primary key.
POSTPONE = """
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        id = ANY (%(ids)s::bigint[])
        AND finished_at IS NULL
        AND status <> 'running'
        AND run_after < COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = 'scheduled',
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s)),
    operations = COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', 'postpone', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM chosen))
RETURNING job.id
"""

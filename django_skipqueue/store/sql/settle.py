"""Writing outcomes."""

from .gates import entering

# settle → id and lease of the outcomes that were written. An outcome whose lease has passed on matches no row and is
# not written. Writing one ends the lease: a second outcome for the same attempt matches nothing. Index: the primary
# key, in the order of the arrays.
# `started` and `ended` say how long ago the attempt began and ended, in microseconds by the worker's monotonic clock;
# NULL: when the job was claimed, and now.
# Arrays that are shorter than `ids` read as NULL: a batch in which all are simply completed, as nearly all are, names
# only ids, leases and times. Read from a JSON document, the values would take an eighth of the statement's time.
# No status in the WHERE: with one the planner may walk the recover index over every running and dead entry instead
# (55 µs a job instead of 8 µs).
SETTLE = entering(
    """
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN outcome.status = 'scheduled' THEN {status}
        ELSE COALESCE(outcome.status, 'completed')
    END,
    lease = job.lease + 1,
    attempts = job.attempts - COALESCE(outcome.refund, 0),
    run_after = CASE
        WHEN outcome.status = 'scheduled' THEN statement_timestamp() + make_interval(secs => outcome.delay)
        ELSE job.run_after
    END,
    locked_at = NULL,
    started_at = COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at),
    finished_at = CASE
        WHEN outcome.status IS DISTINCT FROM 'scheduled'
        THEN statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond'
    END,
    result = outcome.result,
    last_error = COALESCE(outcome.last_error, job.last_error),
    errors = CASE
        WHEN outcome.error IS NULL THEN job.errors
        ELSE (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
            || (
                outcome.error || jsonb_build_object(
                    'at', statement_timestamp() - COALESCE(outcome.ended, 0) * interval '1 microsecond',
                    'worker_id', job.locked_by
                )
            )
    END,
    deaths = CASE WHEN outcome.is_unknown THEN job.deaths END,
    unknown_since = CASE WHEN outcome.is_unknown THEN COALESCE(job.unknown_since, job.locked_at) END
FROM
    unnest(
        (SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(started)s::bigint[]),
        (SELECT %(ended)s::bigint[]), (SELECT %(statuses)s::text[]), (SELECT %(delays)s::float8[]),
        (SELECT %(refunds)s::smallint[]), (SELECT %(results)s::text[]::jsonb[]), (SELECT %(last_errors)s::text[]),
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown)
WHERE job.id = outcome.id AND job.lease = outcome.lease
RETURNING job.id, outcome.lease
""",
    column="job.{}",
    run_after="statement_timestamp() + make_interval(secs => outcome.delay)",
)

# settle, where outcomes put jobs straight back into their queues → the names of these. Index: the primary key.
QUEUES_OF = """
SELECT DISTINCT queue_name
FROM skipqueue_job
WHERE id = ANY (%(ids)s::bigint[]) AND status = 'queued'
"""

# worker, about attempts whose jobs were cancelled meanwhile → the ids of the jobs that keep the error: it says where
# the task was when it ended. A job that has changed hands again keeps nothing; sent twice, an error is kept once.
# Index: the primary key.
KEEP_ERRORS = """
WITH cancelled AS MATERIALIZED (
    SELECT job.id, ended.error
    FROM
        unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[]), (SELECT %(errors)s::text[]::jsonb[]))
            AS ended (id, lease, error)
        JOIN skipqueue_job AS job ON job.id = ended.id AND job.lease = ended.lease + 1
    WHERE job.status = 'discarded' AND (job.errors -> -1 @> ended.error) IS NOT TRUE
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET errors = (CASE WHEN jsonb_array_length(job.errors) < 10 THEN job.errors ELSE job.errors - 0 END)
    || (
        (SELECT error FROM cancelled WHERE cancelled.id = job.id)
        || jsonb_build_object('at', statement_timestamp(), 'worker_id', job.locked_by)
    )
WHERE job.id = ANY (ARRAY (SELECT id FROM cancelled))
RETURNING job.id
"""

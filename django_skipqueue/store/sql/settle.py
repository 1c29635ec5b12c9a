"""Write outcomes."""

from .carried import of_carrier
from .gates import entering

# settle → id, lease and batch of the outcomes that were written. An outcome whose lease is no longer valid matches no
# row. Writing an outcome ends the lease, so that a second one for the same attempt matches no row either. Index: the
# primary key, in the order of the arrays.
# `started` and `ended` are the microseconds since the attempt began and ended, by the worker's monotonic clock; NULL
# means when the job was claimed, and now.
# An array that is shorter than `ids` is filled up with NULL: a batch in which every outcome is a plain completion, as
# most are, has only ids, leases and times. Reading the values from JSON would take an eighth of the statement's time.
# `notes` has the progress and the log of the attempt, if it noted any: NOTE_ATTEMPTS explains them.
# The WHERE has no status: with one, the planner may read every running and dead entry of the recover index instead
# (55 µs per job instead of 8 µs).
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
    has_permit = NULL,
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
    progress = CASE
        WHEN outcome.notes -> 'progress' IS NULL THEN job.progress
        ELSE (outcome.notes -> 'progress') || jsonb_build_object('at', statement_timestamp())
    END,
    logs = CASE
        WHEN outcome.notes -> 'log' IS NULL THEN job.logs
        ELSE (
            CASE
                WHEN job.logs -> -1 -> 'lease' = outcome.notes -> 'log' -> 'lease' THEN job.logs - -1
                WHEN job.logs -> 2 IS NOT NULL THEN job.logs - 0
                ELSE COALESCE(job.logs, '[]')
            END
        ) || (
            (outcome.notes -> 'log') || jsonb_build_object(
                'started', COALESCE(statement_timestamp() - outcome.started * interval '1 microsecond', job.started_at)
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
        (SELECT %(errors)s::text[]::jsonb[]), (SELECT %(unknown)s::boolean[]), (SELECT %(notes)s::text[]::jsonb[])
    ) AS outcome (id, lease, started, ended, status, delay, refund, result, last_error, error, is_unknown, notes)
WHERE job.id = outcome.id AND job.lease = outcome.lease
RETURNING job.id, outcome.lease, job.batch_id
""",
    column="job.{}",
    run_after="statement_timestamp() + make_interval(secs => outcome.delay)",
)

# settle, of a batch with snoozes: the same. A snooze is recorded in `operations`. Snoozes in a row are one entry with
# their number, so that they do not displace the verbs of operators. Batches without a snooze do not pay for it.
SETTLE_SNOOZES = SETTLE.replace(
    "    deaths = ",
    """    operations = CASE
        WHEN outcome.refund IS NULL OR outcome.refund = 0 OR outcome.is_unknown THEN job.operations
        ELSE COALESCE(
            CASE
                WHEN job.operations -> -1 ->> 'verb' = 'snooze' THEN job.operations - -1
                WHEN job.operations -> 49 IS NOT NULL THEN job.operations - 0
                ELSE job.operations
            END,
            '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'snooze', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts,
            'since', statement_timestamp() - outcome.started * interval '1 microsecond',
            'times', 1 + CASE
                WHEN
                    job.operations -> -1 ->> 'verb' = 'snooze'
                    AND jsonb_typeof(job.operations -> -1 -> 'times') = 'number'
                THEN (job.operations -> -1 ->> 'times')::numeric
                ELSE 0
            END
        )
    END,
    deaths = """,
)

# relay, settle: the same two for outcomes that come from a broker: a lease is no secret there. Index: the primary key.
SETTLE_CARRIED = of_carrier(SETTLE)
SETTLE_CARRIED_SNOOZES = of_carrier(SETTLE_SNOOZES)

# settle, after jobs go straight back to their queues → the queue of each, and the key of its rate if it waits for that.
# The array is a subquery, so that the planner does not see its length. Index: the primary key.
QUEUES_OF = """
SELECT queue_name, CASE WHEN status = 'blocked' THEN rate_key END FROM skipqueue_job
WHERE
    id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    AND (status = 'queued' OR (status = 'blocked' AND rate_key IS NOT NULL))
"""

# worker → the ids of the changed jobs. Appends the attempt's error to a job that was cancelled (discarded) while it
# ran: its traceback names the line at which the task ended. lease + 1: the cancel raised the lease once; any other
# value means that the job changed hands again. An error that is sent twice is appended once. Index: the primary key.
APPEND_CANCELLED_ERRORS = """
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

# relay → the same for outcomes that come from a broker. Index: the primary key.
APPEND_CANCELLED_ERRORS_CARRIED = of_carrier(APPEND_CANCELLED_ERRORS)

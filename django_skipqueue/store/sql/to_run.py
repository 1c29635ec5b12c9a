"""The end of the statements that claim."""

# `claim_seconds` is the time from the start of the statement until this row was updated: PostgreSQL reads each row of
# `claimed` as soon as it is there. With the time in RETURNING, where Citus takes no clock, the statement would take a
# twentieth less at most.
_TO_RUN = """claimed AS (
    UPDATE skipqueue_job AS job
    SET status = 'running',
        lease = job.lease + 1,
        attempts = job.attempts + 1,
        locked_by = %(worker_id)s,
        locked_at = statement_timestamp(),
        started_at = statement_timestamp(){more}
    WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
    RETURNING
        job.id, job.lease, job.task, job.queue_name, job.args, job.kwargs, job.attempts, job.max_attempts, job.priority,
        job.run_after, job.locked_at, job.metadata, job.timeout, job.unknown_since
)
SELECT
    id,
    lease,
    task,
    queue_name,
    args::text AS args,
    kwargs::text AS kwargs,
    attempts AS attempt,
    max_attempts,
    priority,
    date_part('epoch', run_after) AS run_after,
    date_part('epoch', locked_at) AS locked_at,
    metadata::text AS metadata,
    timeout,
    date_part('epoch', unknown_since) AS unknown_since,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds
FROM claimed"""


def to_run(statement: str, *, more: str = "") -> str:
    """Replace `{to_run}` in a statement, which has chosen jobs, by its end. `more`: other columns that it sets."""
    return statement.replace("{to_run}", _TO_RUN.replace("{more}", more))

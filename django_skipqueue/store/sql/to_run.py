"""The end of the statements that claim."""

_TO_RUN = """UPDATE skipqueue_job AS job
SET status = 'running',
    lease = job.lease + 1,
    attempts = job.attempts + 1,
    locked_by = %(worker_id)s,
    locked_at = statement_timestamp(),
    started_at = statement_timestamp(){more}
WHERE job.ctid = ANY (ARRAY (SELECT place FROM chosen))
"""

# The columns of `ClaimedJob`. `claim_seconds` is the time from the start of the statement until this row was updated.
_CLAIMED = """RETURNING
    job.id,
    job.lease,
    job.task,
    job.queue_name,
    job.args::text AS args,
    job.kwargs::text AS kwargs,
    job.attempts AS attempt,
    job.max_attempts,
    job.priority,
    date_part('epoch', job.run_after) AS run_after,
    date_part('epoch', job.locked_at) AS locked_at,
    job.metadata::text AS metadata,
    job.timeout,
    date_part('epoch', job.unknown_since) AS unknown_since,
    job.limit_key IS NOT NULL AS holds_permit,
    date_part('epoch', clock_timestamp() - statement_timestamp()) AS claim_seconds,
    jsonb_array_length(job.deaths) >= 2 AS is_suspect,
    CASE WHEN job.limit_kind = 'concurrency' AND job.rate_key IS NULL THEN job.limit_key END AS permit_key"""


def to_run(statement: str, *, more: str = "") -> str:
    """Replace `{to_run}` in a statement, which has chosen jobs, by its end. `more`: other columns that it sets.

    Replace `{claimed}` by the columns that it returns.
    """
    return statement.replace("{to_run}", _TO_RUN.replace("{more}", more) + "{claimed}").replace("{claimed}", _CLAIMED)

"""Statements about limits and about rates that are told once: each has places for what the two do not share.

A place is a name in braces:

- `key`: the column of the key; `locked`: the setting with the keys that are locked
- `waiting`: the condition of a job that waits for a permit or a token
- `unclaimed`: that of a job that has one, and may be put back
- `in_order`: that of a job that keeps its place, whether its queue is served or not
- `rank`: the columns by which the waiting jobs of a key are admitted; `order`: their names; `worst_first`: the reverse
- `put_back`, `admit`: what is set in a job that is put back, or admitted
- `admitted`: what is returned of those that are admitted: their number, and the keys of the rates they wait for
- `served`: a CTE, the queues that are served; `is_served`: the condition of a job in one of them
"""

from collections.abc import Mapping

# The queues that are served: all but the paused ones if `are_all`, else those of `names`. With `idle`, only the workers
# with a free slot count. A relay takes jobs for its carrier. Index: recover, once for each worker.
SERVED = """served AS MATERIALIZED (
    SELECT
        COALESCE(bool_or(jsonb_array_length(worker.queues) = 0), false) AS are_all,
        COALESCE(array_agg(listed.name) FILTER (WHERE listed.name IS NOT NULL), '{}') AS names,
        ARRAY (
            SELECT name
            FROM skipqueue_queue
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > statement_timestamp())
        ) AS paused
    FROM
        skipqueue_worker AS worker
        LEFT JOIN LATERAL jsonb_array_elements_text(worker.queues) AS listed (name) ON true
    WHERE
        NOT worker.is_carrier
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(timeout)s)
        AND (
            (SELECT NOT %(idle)s::boolean)
            OR worker.relay_of <> ''
            OR worker.concurrency > (
                SELECT count(*) FROM skipqueue_job AS job WHERE job.status = 'running' AND job.locked_by = worker.id
            )
        )
)"""

IS_SERVED = "((served.are_all OR queue_name = ANY (served.names)) AND queue_name <> ALL (served.paused))"

PERMITS = {
    "key": "limit_key",
    "waiting": "status <= 'blocked' AND awaits_jobs IS NULL AND has_permit IS NULL",
    "unclaimed": """(status = 'queued' OR (status = 'blocked' AND has_permit))
                AND NOT (limit_kind IN ('sequence', 'halting') AND (started_at IS NOT NULL OR attempts > 0))""",
    "rank": """(CASE
                    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
                    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
                    ELSE 0
                END) AS rank, id""",
    "order": "rank, id",
    "in_order": "limit_kind IN ('sequence', 'halting')",
    "locked": "skipqueue.locked_keys",
    "put_back": "status = 'blocked', has_permit = NULL",
    "admit": """status = CASE WHEN job.rate_key IS NOT NULL THEN 'blocked' ELSE 'queued' END,
        has_permit = CASE WHEN job.rate_key IS NOT NULL THEN true END,
        run_after = CASE
            WHEN job.limit_kind = 'fair' THEN GREATEST(job.run_after, statement_timestamp())
            ELSE job.run_after
        END""",
    "admitted": "count(*) FILTER (WHERE status = 'queued'), array_agg(rate_key) FILTER (WHERE status = 'blocked')",
    "worst_first": "rank DESC, id DESC",
}

TOKENS = {
    "key": "rate_key",
    "waiting": "status <= 'blocked' AND awaits_jobs IS NULL AND (limit_key IS NULL OR has_permit)",
    "unclaimed": "status = 'queued'",
    "rank": "(-priority) AS rank, run_after, id",
    "order": "rank, run_after, id",
    "in_order": "false",
    "locked": "skipqueue.locked_rates",
    "put_back": "status = 'blocked', has_permit = CASE WHEN job.limit_key IS NOT NULL THEN true END",
    "admit": "status = 'queued', has_permit = NULL",
    "admitted": "count(*)",
    "worst_first": "rank DESC, run_after DESC, id DESC",
}


def of_permits(statement: str) -> str:
    """Fill the places of a statement for limits. Called once, at import."""
    return _filled(statement, PERMITS)


def of_tokens(statement: str) -> str:
    """Fill the places of a statement for rates. Called once, at import."""
    return _filled(statement, TOKENS)


def _filled(statement: str, pieces: Mapping[str, str]) -> str:
    for name, piece in {**pieces, "served": SERVED, "is_served": IS_SERVED}.items():
        statement = statement.replace(f"{{{name}}}", piece)
    return statement

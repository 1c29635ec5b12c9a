"""The columns of limits in the statements of the core. Pure.

A job of a sequence, or with a fair share, keeps its permit when it loses its worker: it would be admitted next anyway.
"""

from ...values.part import Condition, PartColumns

# The first column by which permits are given; the second is the id. Index: limit_waiting.
RANK = """(CASE
    WHEN limit_kind IN ('concurrency', 'fair') THEN -priority
    WHEN started_at IS NOT NULL OR attempts > 0 THEN -1
    ELSE 0
END)"""

# The condition of a job that holds a permit of its key: the predicate of the index limit_held.
HOLDS = """(
    status IN ('queued', 'running')
    OR gate = 'rate'
    OR (
        (started_at IS NOT NULL OR attempts > 0)
        AND limit_kind IN ('sequence', 'halting')
        AND status = 'scheduled'
    )
    OR (limit_kind = 'halting' AND status = 'failed')
)"""

COLUMNS = PartColumns(
    key="limit_key",
    of_key={"limit_kind": "text", "capacity": "smallint"},
    gate=Condition(
        gate="limit",
        holds="{limit_key}::text IS NOT NULL",
        key="limit_key",
        returns="{limit_kind} = 'concurrency'",
        grants_permits=True,
    ),
    pieces={
        # A spread retry gives the jobs of a sequence one time, so that they stay in order. A job at which its sequence
        # does not halt counts as not begun until that time: the sequence has gone on without the job, and does not wait
        # for it.
        "retry_started_at": """CASE
        WHEN %(over)s::float8 > 0
            AND (job.limit_kind = 'sequence' OR (job.limit_kind = 'halting' AND job.status = 'discarded'))
        THEN NULL
        ELSE job.started_at
    END""",
        "retry_spread": """CASE
            WHEN job.limit_kind IN ('sequence', 'halting') THEN (hashtext(job.limit_key) & 1023) / 1024.0
            ELSE random()
        END""",
        # The failed jobs at which a sequence has halted. Once a job is discarded, the sequence goes on without it.
        "discard_also": """
            OR (status = 'failed' AND limit_kind = 'halting')""",
    },
)

"""The SQL that limits add to the core's statements. Pure.

If the worker of a job dies, a job of a sequence or with `fair_by` keeps its permit, because it would be admitted next
anyway.
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
        AND (status = 'scheduled' OR gate = 'held')
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
        # A retry that is spread over time gives all jobs of a sequence the same time, so that they stay in order. If
        # the sequence has not halted at a failed or discarded job, the retried job counts as not begun: the sequence
        # has run its later jobs, and does not wait for the retry.
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
        # An operator may also discard the failed job at which a sequence has halted, so that its next job runs.
        "discard_also": """
            OR (status = 'failed' AND limit_kind = 'halting')""",
        # A job that has begun keeps its place at the head of its sequence until it is finished.
        "waits_for_parent": """(
            child.limit_kind IN ('sequence', 'halting') AND child.limit_key = parent.limit_key
        )""",
    },
)

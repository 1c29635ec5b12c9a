"""The SQL that unique keys add to the core's statements. Pure."""

from ...values.part import PartColumns

# The condition that a job holds its unique key; also the predicate of the unique index.
HOLDS_KEY = """unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))"""

COLUMNS = PartColumns(
    of_spec={"unique_seconds": "float8"},
    key="unique_key",
    pieces={
        "unless_held": f"ON CONFLICT (unique_key) WHERE {HOLDS_KEY} DO NOTHING",
        # A retry leaves a job unchanged if another job holds its unique key, even if the retried job itself would not
        # hold the key. If several chosen jobs have the same key, only the newest is retried. The ids are searched only
        # once, in `named`.
        "retry_named": """named AS MATERIALIZED (
    SELECT id, unique_key, max(id) OVER (PARTITION BY unique_key) AS newest_id
    FROM skipqueue_job
    WHERE id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND status IN ('failed', 'discarded')
),
""",
        "retry_ids": """ARRAY (
            SELECT named.id
            FROM named
            WHERE
                named.unique_key IS NULL
                OR (
                    named.id = named.newest_id
                    AND NOT EXISTS (
                        SELECT FROM skipqueue_job AS holder
                        WHERE
                            holder.unique_key = named.unique_key
                            AND holder.unique_key IS NOT NULL
                            AND (
                                holder.unique_seconds > 0
                                OR (
                                    holder.finished_at IS NULL
                                    AND (holder.unique_seconds IS NULL OR holder.lease = 0)
                                )
                            )
                            AND holder.id <> named.id
                            AND (
                                holder.finished_at IS NULL
                                OR holder.enqueued_at + make_interval(secs => holder.unique_seconds)
                                > statement_timestamp()
                            )
                    )
                )
        )""",
        # Retries and enqueues take unique keys in sorted order, so that they wait for each other instead of a deadlock.
        # The collation sorts as Python does.
        "retry_order": 'unique_key COLLATE "C"',
    },
)

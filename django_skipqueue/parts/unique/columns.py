"""The columns of unique keys in the statements of the core. Pure."""

from ...values.part import PartColumns

# Whether a job holds its unique key: the predicate of the unique index.
HOLDS_KEY = """unique_key IS NOT NULL
    AND (unique_seconds > 0 OR (finished_at IS NULL AND (unique_seconds IS NULL OR lease = 0)))"""

COLUMNS = PartColumns(
    of_spec={"unique_seconds": "float8"},
    key="unique_key",
    pieces={
        "unless_held": f"ON CONFLICT (unique_key) WHERE {HOLDS_KEY} DO NOTHING",
        # A retry leaves a job unchanged if another job holds its unique key, even if the retried job would not hold the
        # key. Of several chosen jobs with one key, only the newest is retried. The array is searched once, for `named`.
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
        # Retries take keys in their order, as enqueues do, so that enqueues and retries wait for each other and never
        # deadlock. The collation sorts as Python does.
        "retry_order": 'unique_key COLLATE "C"',
    },
)

"""The SQL that batches add to the core's statements. Pure."""

from ...values.part import PartColumns

COLUMNS = PartColumns(
    of_spec={"batch_id": "bigint"},
    are_copied=False,
    pieces={
        "settled": "job.batch_id",
        "pruned": ", batch_id",
        # A prune also deletes jobs of batches that are still open. A table counts the deleted jobs, except callbacks,
        # so that the batch and its outer batches can report all of their jobs when they end. If another job still waits
        # for a pruned job, its dependency records the pruned job's status. Indexes: the primary keys.
        "after_prune": """,
counted_jobs AS (
    INSERT INTO skipqueue_batch_pruned (batch_id, status, jobs)
    SELECT per_status.batch_id, per_status.status, per_status.jobs
    FROM (
        SELECT batch_id, status, count(*) FILTER (WHERE NOT is_callback) AS jobs
        FROM (
            SELECT
                pruned.batch_id,
                pruned.status,
                coalesce(
                    (
                        SELECT pruned.id = ANY (batch.callback_ids)
                        FROM skipqueue_batch AS batch
                        WHERE batch.id = pruned.batch_id
                    ),
                    false
                ) AS is_callback
            FROM pruned
            WHERE pruned.batch_id IS NOT NULL
        ) AS job
        GROUP BY batch_id, status
    ) AS per_status
    WHERE (
        WITH RECURSIVE enclosing AS (
            SELECT parent_id, finished_at FROM skipqueue_batch WHERE id = per_status.batch_id
            UNION ALL
            SELECT outside.parent_id, outside.finished_at
            FROM enclosing JOIN skipqueue_batch AS outside ON outside.id = enclosing.parent_id
        )
        SELECT bool_or(finished_at IS NULL) FROM enclosing
    )
),
unmet AS MATERIALIZED (
    SELECT needs.job_id, needs.position, pruned.status
    FROM
        pruned
        JOIN skipqueue_dependency AS needs ON needs.needs_job_id = pruned.id
    WHERE NOT needs.is_met
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs
),
marked AS (
    UPDATE skipqueue_dependency AS needs
    SET pruned_as = unmet.status
    FROM unmet
    WHERE needs.job_id = unmet.job_id AND needs.position = unmet.position
),
deleted_needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING pruned
    WHERE needs.job_id = pruned.id AND needs.is_met
)""",
    },
)

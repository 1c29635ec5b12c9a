"""The SQL that steps add to the core's statements. The job table has no column for steps. Pure."""

from ...values.part import PartColumns

COLUMNS = PartColumns(
    pieces={
        # A prune keeps a child until the step that waits for it has recorded its result. The subquery has a LIMIT
        # because the planner may read a whole table for a join. With IS NULL, the planner would expect that few jobs
        # match, and would sort all old jobs. Indexes: child_job, the primary keys.
        "unless_needed": """
            AND (
                SELECT true
                FROM
                    skipqueue_child AS child
                    JOIN skipqueue_step AS step ON step.job_id = child.parent_id AND step.name = child.name
                    JOIN skipqueue_job AS parent ON parent.id = child.parent_id
                WHERE child.job_id = job.id AND step.recorded_at IS NULL AND parent.finished_at IS NULL
                LIMIT 1
            ) IS NOT TRUE""",
        # The archive keeps the first 1,000 children of a job. Indexes: the primary keys.
        "kept_records": """(
        SELECT jsonb_build_object(
            'steps', jsonb_agg(to_jsonb(step) ORDER BY step.number),
            'signals', (
                SELECT jsonb_agg(to_jsonb(signal) ORDER BY signal.sent_at)
                FROM skipqueue_signal AS signal
                WHERE signal.job_id = pruned.id
            ),
            'children', (
                SELECT jsonb_agg(to_jsonb(child) ORDER BY child.name, child.position)
                FROM (
                    SELECT * FROM skipqueue_child WHERE parent_id = pruned.id ORDER BY name, position LIMIT 1000
                ) AS child
            )
        )
        FROM skipqueue_step AS step
        WHERE step.job_id = pruned.id
        HAVING count(*) > 0
    )""",
        # Indexes: the primary keys.
        "after_prune": """,
steps AS (
    DELETE FROM skipqueue_step AS step USING pruned WHERE step.job_id = pruned.id
),
signals AS (
    DELETE FROM skipqueue_signal AS signal USING pruned WHERE signal.job_id = pruned.id
),
children AS (
    DELETE FROM skipqueue_child AS child USING pruned WHERE child.parent_id = pruned.id
)""",
    },
)

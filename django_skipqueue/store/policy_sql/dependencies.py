"""Keep jobs from running before the jobs that they need, and admit them when those are finished."""

from ..sql.gates import entering

# enqueue, in the transaction of the INSERT → the ids that no job has. Each of the jobs `ids` waits for all of `needs`.
# The lock keeps the needed jobs from being pruned before the commit: a prune sees only committed dependencies, and
# notes in those how the job ended. Claims and settles do not wait for it. Index: the primary key.
INSERT_DEPENDENCIES = """
WITH locked AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (%(needs)s::bigint[])
    ORDER BY job.id
    FOR KEY SHARE
),
inserted AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT waiting.id, needed.position, needed.id, %(after_failure)s::text
    FROM
        unnest(%(ids)s::bigint[]) AS waiting (id),
        unnest(%(needs)s::bigint[]) WITH ORDINALITY AS needed (id, position)
)
SELECT id FROM unnest(%(needs)s::bigint[]) AS needed (id)
EXCEPT
SELECT id FROM locked
ORDER BY id
"""

# admit → the ids of the next jobs that others wait for, after an id; for each, whether it lets one of them through: it
# has completed, or it is finished and one of them goes on after a failure. A job that was deleted counts as discarded.
# Indexes: unmet of dependencies, the primary key. One probe for each job that others wait for.
PREDECESSORS = """
WITH RECURSIVE needed AS (
    (
        SELECT needs_job_id AS id
        FROM skipqueue_dependency
        WHERE NOT is_met AND needs_job_id > %(after)s
        ORDER BY needs_job_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT needs_job_id
        FROM skipqueue_dependency
        WHERE NOT is_met AND needs_job_id > needed.id
        ORDER BY needs_job_id
        LIMIT 1
    )
    FROM needed
    WHERE needed.id IS NOT NULL
)
SELECT
    needed.id,
    CASE coalesce(
        (SELECT job.status FROM skipqueue_job AS job WHERE job.id = needed.id),
        (
            SELECT pruned.pruned_as
            FROM skipqueue_dependency AS pruned
            WHERE NOT pruned.is_met AND pruned.needs_job_id = needed.id
            LIMIT 1
        ),
        'discarded'
    )
        WHEN 'completed' THEN true
        WHEN 'failed' THEN going_on.is_any
        WHEN 'discarded' THEN going_on.is_any
        ELSE false
    END
FROM
    needed,
    LATERAL (
        SELECT (
            SELECT waiting.job_id
            FROM skipqueue_dependency AS waiting
            WHERE
                NOT waiting.is_met
                AND waiting.needs_job_id = needed.id
                AND waiting.after_failure IN ('discard', 'run')
            LIMIT 1
        ) IS NOT NULL
    ) AS going_on (is_any)
WHERE needed.id IS NOT NULL
LIMIT %(limit)s
"""

# admit, worker after a settle, in the transaction of the next statement → the ids of the jobs that wait for one of
# these, if that one lets them through. Indexes: unmet of dependencies, the primary key.
LOCK_DEPENDANTS = """
SELECT job.id
FROM
    skipqueue_dependency AS needed
    JOIN skipqueue_job AS job ON job.id = needed.job_id
WHERE
    needed.needs_job_id = ANY (%(ids)s::bigint[])
    AND NOT needed.is_met
    AND job.awaits_jobs
    AND CASE coalesce(
        (SELECT earlier.status FROM skipqueue_job AS earlier WHERE earlier.id = needed.needs_job_id),
        needed.pruned_as,
        'discarded'
    )
        WHEN 'completed' THEN true
        WHEN 'failed' THEN needed.after_failure <> 'wait'
        WHEN 'discarded' THEN needed.after_failure <> 'wait'
        ELSE false
    END
LIMIT %(limit)s
FOR NO KEY UPDATE OF job SKIP LOCKED
"""

# admit, worker after a settle, enqueue → the jobs that wait for no other job any more: admitted, or discarded because a
# job that they need has not completed. A statement of its own after the locks: two
# predecessors that end at once are both seen by the second one. A job that was discarded by hand while it waited stays
# discarded; if it is retried, it need not wait. Reads the needs once, however many there are. Indexes: those of the
# primary keys.
ADMIT_DEPENDANTS = entering(
    """
WITH needed AS MATERIALIZED (
    SELECT
        needs.ctid AS place,
        needs.job_id,
        needs.needs_job_id,
        needs.after_failure,
        coalesce(
            (SELECT earlier.status FROM skipqueue_job AS earlier WHERE earlier.id = needs.needs_job_id),
            needs.pruned_as,
            'discarded'
        ) AS state
    FROM skipqueue_dependency AS needs
    WHERE needs.job_id = ANY (%(ids)s::bigint[]) AND NOT needs.is_met
),
judged AS MATERIALIZED (
    SELECT
        place,
        job_id,
        state = 'completed' OR (state IN ('failed', 'discarded') AND after_failure <> 'wait') AS is_met,
        bool_or(
            state NOT IN ('completed', 'failed', 'discarded') OR (state <> 'completed' AND after_failure = 'wait')
        ) OVER needs AS waits,
        min(needs_job_id) FILTER (WHERE state IN ('failed', 'discarded') AND after_failure = 'discard')
            OVER needs AS without
    FROM needed
    WINDOW needs AS (PARTITION BY job_id)
),
settled AS MATERIALIZED (
    SELECT needs.ctid AS place
    FROM skipqueue_dependency AS needs
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM judged WHERE is_met OR without IS NOT NULL))
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs SKIP LOCKED
),
met AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = true
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM settled))
)
UPDATE skipqueue_job AS job
SET awaits_jobs = NULL,
    status = CASE
        WHEN job.finished_at IS NOT NULL THEN job.status
        WHEN verdict.without IS NOT NULL THEN 'discarded'
        WHEN job.status = 'blocked' THEN {status}
        ELSE job.status
    END,
    lease = CASE WHEN verdict.without IS NULL OR job.finished_at IS NOT NULL THEN job.lease ELSE job.lease + 1 END,
    finished_at = CASE
        WHEN verdict.without IS NULL THEN job.finished_at
        ELSE coalesce(job.finished_at, statement_timestamp())
    END,
    last_error = CASE
        WHEN verdict.without IS NULL OR job.finished_at IS NOT NULL THEN job.last_error
        ELSE 'Discarded: it needs job ' || verdict.without || ', which has not completed.'
    END
FROM (SELECT DISTINCT job_id, waits, without FROM judged) AS verdict
WHERE
    job.id = verdict.job_id
    AND job.awaits_jobs
    AND (verdict.without IS NOT NULL OR NOT verdict.waits)
RETURNING
    job.id,
    job.task,
    job.queue_name,
    job.status,
    job.batch_id,
    job.metadata::text AS metadata,
    CASE WHEN job.finished_at = statement_timestamp() THEN verdict.without END AS needs_job_id
""",
    column="job.{}",
    past="dependency",
)

# admit, for predecessors that let nobody through → the number of dependencies on them that nobody waits for. Deletes
# what jobs that were deleted have left, and marks those of jobs that wait no more. Indexes: unmet of dependencies, the
# primary key.
FORGET_DEPENDANTS = """
WITH left_over AS MATERIALIZED (
    SELECT
        needs.ctid AS place,
        (SELECT job.id FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NULL AS is_gone
    FROM skipqueue_dependency AS needs
    WHERE
        needs.needs_job_id = ANY (%(ids)s::bigint[])
        AND NOT needs.is_met
        AND (SELECT job.awaits_jobs FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NOT TRUE
    LIMIT %(limit)s
    FOR UPDATE OF needs SKIP LOCKED
),
deleted AS (
    DELETE FROM skipqueue_dependency AS needs
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM left_over WHERE is_gone))
),
met AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = true
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM left_over WHERE NOT is_gone))
)
SELECT count(*) FROM left_over
"""

# JobContext → the jobs that this one needs, all of them, in their order, with task, status and result; NULL: deleted,
# or pruned. Index: the primary keys.
NEEDS = """
SELECT
    needs.needs_job_id,
    job.task AS task,
    coalesce(job.status, needs.pruned_as) AS status,
    job.result::text AS result,
    job.id IS NULL AS is_gone
FROM
    skipqueue_dependency AS needs
    LEFT JOIN skipqueue_job AS job ON job.id = needs.needs_job_id
WHERE needs.job_id = %(id)s
ORDER BY needs.position
"""

# admin → some of the jobs that this one waits for still, first those that keep it waiting although they are finished,
# and in each row how many there are in all. Index: the primary keys.
UNMET_NEEDS = """
SELECT
    unmet.needs_job_id,
    unmet.status,
    unmet.is_gone,
    unmet.after_failure = 'wait' AND coalesce(unmet.status, 'discarded') IN ('failed', 'discarded') AS is_stuck,
    count(*) OVER () AS number
FROM (
    SELECT
        needs.needs_job_id,
        needs.position,
        needs.after_failure,
        coalesce(job.status, needs.pruned_as) AS status,
        job.id IS NULL AS is_gone
    FROM
        skipqueue_dependency AS needs
        LEFT JOIN skipqueue_job AS job ON job.id = needs.needs_job_id
    WHERE needs.job_id = %(id)s AND NOT needs.is_met
) AS unmet
ORDER BY is_stuck DESC, unmet.position
LIMIT %(limit)s
"""

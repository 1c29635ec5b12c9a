"""Retry jobs from one of their steps on, or run copies of jobs from a step on."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from django.db import transaction

from ...queue.parameters import as_array
from ...values.outcomes import Delay

if TYPE_CHECKING:
    from ...queue.store import Store

# Sent by the verbs of operators. Among the given jobs, returns the ids of the jobs that have a step of this name.
# Index: the primary key of steps.
WITH_STEP = """
SELECT job_id FROM skipqueue_step WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND name = %(step)s
"""

# Sent by the verbs of operators, before a retry. Returns the ids of the finished jobs that have a step of this name.
# Deletes the step and all later steps of each job, with their signals and children, so that the job no longer waits for
# any of them. Indexes: the primary keys.
FORGET_STEPS = """
WITH first AS MATERIALIZED (
    SELECT step.job_id AS id, step.number
    FROM
        skipqueue_step AS step
        JOIN skipqueue_job AS job ON job.id = step.job_id
    WHERE
        step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND step.name = %(step)s
        AND job.status IN ('failed', 'discarded')
    ORDER BY step.job_id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
forgotten AS MATERIALIZED (
    DELETE FROM skipqueue_step AS step
    USING first
    WHERE step.job_id = first.id AND step.number >= first.number
    RETURNING step.job_id, step.name, step.kind
),
signals AS (
    DELETE FROM skipqueue_signal AS signal
    USING forgotten
    WHERE
        signal.job_id = forgotten.job_id
        AND signal.name = forgotten.name
        AND forgotten.kind = 'wait'
        AND signal.taken_at IS NOT NULL
),
children AS (
    DELETE FROM skipqueue_child AS child
    USING forgotten
    WHERE child.parent_id = forgotten.job_id AND child.name = forgotten.name
    RETURNING child.parent_id, child.job_id
),
needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING children
    WHERE needs.job_id = children.parent_id AND needs.needs_job_id = children.job_id
)
UPDATE skipqueue_job AS job SET held = NULL WHERE job.id = ANY (ARRAY (SELECT id FROM first)) RETURNING job.id
"""

# Sent by the verbs of operators, after they have made copies of jobs. Gives each copy the steps that its original had
# recorded before the step of this name. Indexes: the primary keys.
COPY_STEPS = """
INSERT INTO skipqueue_step
    (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
SELECT
    made.copy_id, step.name, step.kind, step.number, 1, step.started_at, step.recorded_at, step.result, step.error,
    step.wakes_at
FROM
    unnest(%(ids)s::bigint[], %(copy_ids)s::bigint[]) AS made (id, copy_id)
    JOIN skipqueue_step AS first ON first.job_id = made.id AND first.name = %(step)s
    JOIN skipqueue_step AS step ON step.job_id = made.id
WHERE step.number < first.number AND step.recorded_at IS NOT NULL
"""


def retry_from(
    store: "Store", ids: Collection[int], step: str, *, over: Delay = 0.0, by: str = "", reason: str = ""
) -> dict[int, str]:
    """Retry failed and discarded jobs, and forget their steps from the step of this name on.

    A job without such a step stays as it is, and so does a job that cannot be retried. Returns the ids of the retried
    jobs, with their status.
    """
    left = list(ids)  # if some jobs cannot be retried, the next round tries again without them
    while left:
        with transaction.atomic(using=store.alias):
            forgotten = [id for (id,) in store.rows(FORGET_STEPS, {"ids": as_array(left), "step": step})]
            why = f"from the step {step}" + (f": {reason}" if reason else "")
            retried = store.retry(forgotten, over=over, by=by, reason=why) if forgotten else {}
            if len(retried) == len(forgotten):
                return retried
            transaction.set_rollback(True, using=store.alias)  # if no job is retried, all jobs keep their steps
        left = list(retried)
    return {}


def jobs_with_step(store: "Store", ids: Collection[int], step: str) -> list[int]:
    return [id for (id,) in store.rows(WITH_STEP, {"ids": as_array(ids), "step": step})]


def copy_steps(store: "Store", copies: dict[int, int], step: str) -> None:
    """Give copies of jobs the records before the step of this name, in the transaction that has made the copies.

    `copies`: the id of each copy, by the id of its original.
    """
    values = {"ids": as_array(copies), "copy_ids": as_array(copies.values()), "step": step}
    store.execute(COPY_STEPS, values)

"""Verbs of operators: retry a job from one of its steps on, or run a copy of it from there."""

from typing import TYPE_CHECKING

from django.db import transaction

from ...exceptions import InvalidOption

if TYPE_CHECKING:
    from ...queue.store import Store

# operators, before a retry → the number of steps that were forgotten: those from the step of this name on, with their
# signals and children. The finished job waits for none of them. Indexes: the primary keys.
FORGET_STEPS = """
WITH forgotten AS MATERIALIZED (
    DELETE FROM skipqueue_step AS step
    USING skipqueue_step AS first
    WHERE
        first.job_id = %(job_id)s
        AND first.name = %(name)s
        AND step.job_id = first.job_id
        AND step.number >= first.number
    RETURNING step.name, step.kind
),
signals AS (
    DELETE FROM skipqueue_signal AS signal
    USING forgotten
    WHERE
        signal.job_id = %(job_id)s
        AND signal.name = forgotten.name
        AND forgotten.kind = 'wait'
        AND signal.taken_at IS NOT NULL
),
children AS (
    DELETE FROM skipqueue_child AS child
    USING forgotten
    WHERE child.parent_id = %(job_id)s AND child.name = forgotten.name
    RETURNING child.job_id
),
needs AS (
    DELETE FROM skipqueue_dependency AS needs
    USING children
    WHERE needs.job_id = %(job_id)s AND needs.needs_job_id = children.job_id
),
released AS (
    UPDATE skipqueue_job
    SET held = NULL
    WHERE id = %(job_id)s AND finished_at IS NOT NULL AND EXISTS (SELECT FROM forgotten)
)
SELECT count(*) FROM forgotten
"""

# operators, after they have made a copy of a job → the number of its steps that the copy has: those that were recorded
# before the step of this name. Indexes: the primary keys.
COPY_STEPS = """
WITH copied AS (
    INSERT INTO skipqueue_step
        (job_id, name, kind, number, attempt, started_at, recorded_at, result, error, wakes_at)
    SELECT
        %(copy_id)s, step.name, step.kind, step.number, 1, step.started_at, step.recorded_at, step.result, step.error,
        step.wakes_at
    FROM
        skipqueue_step AS step
        JOIN skipqueue_step AS first ON first.job_id = step.job_id AND first.name = %(name)s
    WHERE step.job_id = %(job_id)s AND step.number < first.number AND step.recorded_at IS NOT NULL
    RETURNING name
)
SELECT count(*) FROM copied
"""


def retry_from_step(store: "Store", job_id: int, name: str, *, by: str = "", reason: str = "") -> bool:
    """Retry a failed or discarded job, and forget its steps from this one on. Returns whether it was retried.

    Raises `InvalidOption` if the job has no step of this name.
    """
    with transaction.atomic(using=store.alias):
        [(number,)] = store.rows(FORGET_STEPS, {"job_id": job_id, "name": name})
        if not number:
            raise InvalidOption(f"Job {job_id} has no step {name!r}.")
        retried = job_id in store.retry([job_id], by=by, reason=reason or f"from the step {name}")
        if not retried:
            transaction.set_rollback(True, using=store.alias)
    return retried


def copy_steps(store: "Store", job_id: int, copy_id: int, name: str) -> int:
    """Give the copy of a job the records before the step of this name, in the transaction that has made the copy.

    Returns how many.
    """
    [(number,)] = store.rows(COPY_STEPS, {"job_id": job_id, "copy_id": copy_id, "name": name})
    return int(number)

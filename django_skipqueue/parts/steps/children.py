"""`context.run` and `context.run_all`: a step that runs other jobs, its children, and returns their results.

Invariant: the children of a step are deferred once, in the transaction that records the step. The job waits for them by
dependencies. A child is not pruned before the step has recorded the child's result.
"""

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction

from ...events.log_format import job_name
from ...exceptions import (
    BatchFinished,
    ChildFailed,
    InvalidArguments,
    InvalidOption,
    UndecodableArguments,
    UnknownTask,
)
from ...jobs.registry import registry
from ...jobs.task_call import TaskCall
from ...queue.fragments import PIECES, joined
from ...queue.parameters import as_array
from ...queue.store import Store
from ...values.bounds import LARGEST_JSON
from ...values.codec import decode, size_of
from ..batches.batch import Batch, as_call, defer_all, in_batch
from .record import HELD

if TYPE_CHECKING:
    from .attempt import AttemptSteps

# Sent by an attempt, in the transaction of the step. Stores the children and makes the job depend on them. The job is
# held, so that the settle of its attempt blocks it until the children are finished. The job's earlier dependencies are
# all met. Returns a child that cannot begin before this job is finished, or else NULL. Indexes: the primary keys.
ADD_CHILDREN = joined(
    """
WITH added AS (
    INSERT INTO skipqueue_child (parent_id, name, position, job_id)
    SELECT %(job_id)s, %(name)s, child.position, child.id
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS child (id, position)
),
needed AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT
        %(job_id)s,
        COALESCE((SELECT max(position) FROM skipqueue_dependency WHERE job_id = %(job_id)s), 0) + child.position,
        child.id,
        'run'
    FROM (
        SELECT id, min(position) AS position
        FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS child (id, position)
        GROUP BY id
    ) AS child
)
UPDATE skipqueue_job AS parent
SET held = true
WHERE parent.id = %(job_id)s
RETURNING (
    SELECT min(child.id)
    FROM skipqueue_job AS child
    WHERE child.id = ANY (%(ids)s::bigint[]) AND child.finished_at IS NULL AND {waits_for_parent}
)
""",
    waits_for_parent=PIECES["waits_for_parent"],
)

# Sent by an attempt that runs again. Returns the children of a step, in the order of the calls. `status` is NULL if the
# child was deleted. Indexes: the primary keys.
CHILDREN = """
SELECT child.job_id, job.task, job.status, job.result::text, job.last_error
FROM
    skipqueue_child AS child
    LEFT JOIN skipqueue_job AS job ON job.id = child.job_id
WHERE child.parent_id = %(job_id)s AND child.name = %(name)s
ORDER BY child.position
"""

# Sent by an attempt that runs again and finds unfinished children. Makes the job depend on them again, and holds the
# job. Returns a row if the lease is valid. The dependency may be gone: if a child failed, the job no longer needed it,
# and then somebody retried the child by hand. Indexes: the primary keys.
HOLD_AGAIN = joined(
    """
WITH {held},
needed AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = false
    FROM held
    WHERE needs.job_id = held.id AND needs.needs_job_id = ANY (%(ids)s::bigint[])
    RETURNING needs.needs_job_id
),
needed_again AS (
    INSERT INTO skipqueue_dependency (job_id, position, needs_job_id, after_failure)
    SELECT
        held.id,
        COALESCE((SELECT max(position) FROM skipqueue_dependency WHERE job_id = held.id), 0)
            + row_number() OVER (ORDER BY child.id),
        child.id,
        'run'
    FROM held, (SELECT DISTINCT unnest(%(ids)s::bigint[]) AS id EXCEPT SELECT needs_job_id FROM needed) AS child
)
UPDATE skipqueue_job AS job SET held = true FROM held WHERE job.id = held.id RETURNING job.id
""",
    held=HELD,
)

# Sent by an attempt, in the transaction that records the results of children. Deletes the dependencies, because the job
# no longer needs the children. Index: the primary key.
FORGET_CHILDREN = """
DELETE FROM skipqueue_dependency WHERE job_id = %(job_id)s AND needs_job_id = ANY (%(ids)s::bigint[])
"""

# Sent by the verbs of operators, after they have canceled or discarded jobs. Ends the waits of these jobs for signals:
# if a job is retried, its task comes to the wait again. Returns the children of these jobs that have not begun, except
# for children that another job waits for as well: two calls with one unique key have one child. The subquery has a
# LIMIT because the planner may read a whole table for a join. Indexes: child_job, the primary keys.
END_WAITS = """
WITH ended AS (
    UPDATE skipqueue_step
    SET is_waiting = NULL
    WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND COALESCE(is_waiting, false)
    RETURNING job_id
),
let_go AS (
    UPDATE skipqueue_job SET held = NULL WHERE id = ANY (ARRAY (SELECT job_id FROM ended))
)
SELECT child.job_id
FROM
    skipqueue_step AS step
    JOIN skipqueue_child AS child ON child.parent_id = step.job_id AND child.name = step.name
    JOIN skipqueue_job AS job ON job.id = child.job_id
WHERE
    step.job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    AND step.kind = 'run'
    AND step.recorded_at IS NULL
    AND job.started_at IS NULL
    AND job.finished_at IS NULL
    AND (
        SELECT true
        FROM
            skipqueue_child AS shared
            JOIN skipqueue_job AS parent ON parent.id = shared.parent_id
        WHERE
            shared.job_id = child.job_id
            AND shared.parent_id <> child.parent_id
            AND parent.finished_at IS NULL
        LIMIT 1
    ) IS NOT TRUE
"""

# The sleeps of these jobs that are not over. COALESCE keeps the planner from using the index of all sleeping jobs.
ASLEEP = """asleep AS MATERIALIZED (
    SELECT ctid AS place
    FROM skipqueue_step
    WHERE
        job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
        AND COALESCE(kind, '') = 'sleep'
        AND wakes_at > statement_timestamp()
)"""

# Sent by the verbs of operators, after `run now`. Ends the sleep of these jobs. Index: the primary key.
END_SLEEPS = joined(
    """
WITH {asleep}
UPDATE skipqueue_step AS step
SET wakes_at = statement_timestamp()
WHERE step.ctid = ANY (ARRAY (SELECT place FROM asleep))
RETURNING step.job_id
""",
    asleep=ASLEEP,
)

# Sent by the verbs of operators, after jobs were given another due time. A sleep ends when its job is due. Indexes: the
# primary keys.
MOVE_SLEEPS = joined(
    """
WITH {asleep}
UPDATE skipqueue_step AS step
SET wakes_at = (SELECT run_after FROM skipqueue_job AS job WHERE job.id = step.job_id)
WHERE step.ctid = ANY (ARRAY (SELECT place FROM asleep))
RETURNING step.job_id
""",
    asleep=ASLEEP,
)

# Sent by the verbs of operators, after a retry. If the job failed with the error of its last step, the statement
# deletes this error, so that the step is tried again. If the task has caught the error and failed later, the error
# stays recorded. Indexes: the primary keys.
REOPEN_FAILED = """
UPDATE skipqueue_step AS step
SET recorded_at = NULL, error = NULL
FROM (
    SELECT job_id, max(number) AS number
    FROM skipqueue_step
    WHERE job_id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
    GROUP BY job_id
) AS last
WHERE
    step.job_id = last.job_id
    AND step.number = last.number
    AND step.error IS NOT NULL
    AND (
        SELECT split_part(job.last_error, ':', 1) IN ('SignalTimeout', 'ChildFailed')
        FROM skipqueue_job AS job
        WHERE job.id = step.job_id
    )
RETURNING step.job_id
"""

AFTER_VERBS = {
    "run_now": END_SLEEPS,
    "postpone": MOVE_SLEEPS,
    "reschedule": MOVE_SLEEPS,
    "retry": REOPEN_FAILED,
}
"""The statement that changes the steps of jobs after a verb has changed the jobs."""


class Child(NamedTuple):
    job_id: int
    task: str | None
    status: str | None
    """`None` if the child was deleted."""
    result: str | None
    last_error: str | None

    @property
    def is_finished(self) -> bool:
        return self.status in (None, "completed", "failed", "discarded")


def on_operate(store: Store, verb: str, ids: Sequence[int]) -> None:
    """Change the steps of these jobs after an operator's verb has changed the jobs."""
    if verb in AFTER_VERBS:
        store.rows(AFTER_VERBS[verb], {"ids": as_array(ids)})
    elif verb in ("cancel", "discard"):
        unbegun = [id for (id,) in store.rows(END_WAITS, {"ids": as_array(ids)})]
        if unbegun:
            parents = ", ".join(job_name(store.alias, id) for id in ids[:3])
            store.discard(unbegun, reason=f"The job that waits for it has ended: {parents}.")


def run_children(steps: "AttemptSteps", name: str, calls: Sequence[Any]) -> list[Any]:
    """Run these calls as jobs and return their results. Ends the attempt while one of the jobs is unfinished.

    Raises `ChildFailed` if a job did not complete.
    """
    task_calls = [in_batch(f"{name!r}", as_call(f"{name!r}", call), steps.store.alias) for call in calls]
    recorded = steps.begin(name, "run")
    if recorded is not None and recorded.is_over:
        return _outcome(recorded.result, recorded.error)
    if recorded is None:
        steps.end_if_stopping()
        _defer(steps, name, task_calls)
    children = [Child._make(row) for row in steps.store.rows(CHILDREN, {"job_id": steps.ref[0], "name": name})]
    if unfinished := [child.job_id for child in children if not child.is_finished]:
        if recorded is not None:
            _hold_again(steps, unfinished)
        steps.hold_job()
    result, error = _collected(steps.store.alias, children)
    if (size := size_of(result)) > LARGEST_JSON:
        raise InvalidArguments(
            f"The results of the children of {name!r} are {size:,} bytes long, and PostgreSQL stores at most "
            f"{LARGEST_JSON:,}. Store what is large elsewhere, and return its key."
        )
    with transaction.atomic(using=steps.store.alias):
        entry = steps.record(name, "run", result=result, error=error)
        ids = as_array(child.job_id for child in children)
        steps.store.execute(FORGET_CHILDREN, {"job_id": steps.ref[0], "ids": ids})
    steps.note_recorded(entry)
    return _outcome(result, error)


def _defer(steps: "AttemptSteps", name: str, calls: Sequence[TaskCall]) -> None:
    """Defer the children in the job's batch or a new one, so that the worker that ends them admits this job."""
    job_id, _lease = steps.ref
    with transaction.atomic(using=steps.store.alias):
        entry = steps.record(name, "run", is_open=True)
        if calls:
            ids = [job.pk for job in _in_batch_of(steps, name, calls)]
            if job_id in ids:
                raise InvalidOption(
                    f"The step {name!r} would wait for its own job, which has the unique key of the call. Give the "
                    "call another key."
                )
            values = {"job_id": job_id, "name": name, "ids": as_array(ids)}
            ((stuck_child_id,),) = steps.store.rows(ADD_CHILDREN, values)
            if stuck_child_id is not None:
                raise InvalidOption(
                    f"The step {name!r} would wait for ever: its child has the same sequence as this job, and begins "
                    "only when this job is finished. Give the child another sequence, or none."
                )
    steps.note_recorded(entry)


def _in_batch_of(steps: "AttemptSteps", name: str, calls: Sequence[TaskCall]) -> list[Any]:
    alias = steps.store.alias
    batch = Batch.of(steps.ref[0], database=alias)
    if batch is not None:
        with suppress(BatchFinished):  # the job is a callback of the finished batch
            return batch.add(*calls)
    with Batch(name=name, database=alias):
        return defer_all(calls)


def _hold_again(steps: "AttemptSteps", ids: Collection[int]) -> None:
    job_id, lease = steps.ref
    steps.require_lease(steps.store.rows(HOLD_AGAIN, {"job_id": job_id, "lease": lease, "ids": as_array(ids)}))


def _collected(alias: str, children: Sequence[Child]) -> tuple[str, str | None]:
    """Return the results as JSON, each with its task, and no error; or the error, if a child did not complete."""
    results = [[child.task, None if child.result is None else decode(child.result)] for child in children]
    failed = [child for child in children if child.status != "completed"]
    if not failed:
        return json.dumps(results), None
    first = failed[0]
    reason = first.last_error if first.status else "it was deleted"
    error = {
        "message": f"Job {job_name(alias, first.job_id)} did not complete: {reason}",
        "job_id": first.job_id,
        "error": reason or "",
        "job_ids": [child.job_id for child in failed],
    }
    return "null", json.dumps(error)


def _outcome(result: str | None, error: str | None) -> list[Any]:
    """Convert the results by the annotations of their tasks. Raises `ChildFailed`."""
    if error is not None:
        details = decode(error)
        raise ChildFailed(
            details["message"], job_id=details["job_id"], error=details["error"], job_ids=tuple(details["job_ids"])
        )
    results = []
    for task, value in decode(result or "[]"):
        with suppress(UnknownTask, UndecodableArguments):
            value = registry.get(task).typed_result(value)  # noqa: PLW2901 (if this fails, the value stays as in JSON)
        results.append(value)
    return results

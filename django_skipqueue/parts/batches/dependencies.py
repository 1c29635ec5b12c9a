"""Block jobs until the jobs that they need are finished, and then admit them.

A dependant is a job that waits; a predecessor is a job that a dependant needs.

A dependant is admitted or discarded exactly once, because the statement that does this begins after the dependant's row
is locked. A predecessor that an operator retries admits no dependant until it has completed. There is one exception: a
dependant that runs even after a failure (`after_failure="run"`) no longer needs a predecessor that has failed once, and
waits only for its other predecessors.

Enqueues, the dependency gate, and workers after a settle use this module.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import transaction

from ...events.events import JobsAdmitted
from ...exceptions import InvalidOption
from ...queue.fragments import entering, joined
from ...queue.notify import GATES_PAYLOAD, notify_supervisors, wake, wake_supervisors
from ...queue.parameters import BATCH_ROWS, as_array
from ...queue.store import Store
from ...values.records import Dependant, GateResult, JobSpec
from .events import DependantsDiscarded

# Sent by enqueue, in the transaction of the INSERT. Makes each of the jobs `ids` wait for all jobs in `needs`. Returns
# the ids in `needs` for which no job exists. The lock keeps a prune from deleting the needed jobs before the commit: a
# prune records in the dependencies how a deleted job ended, and it does not see dependencies that are not yet
# committed. Claims and settles do not wait for the lock. Index: the primary key.
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

# Sent by admit. Returns the ids of the next predecessors after an id, and for each whether it may admit a dependant. A
# predecessor may do so if it has completed, or if it has failed or was discarded and a dependant does not wait after a
# failure. A deleted job counts as discarded. Indexes: unmet of dependencies, the primary key; one lookup per
# predecessor.
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
        WHEN 'failed' THEN dependant.goes_on_after_failure
        WHEN 'discarded' THEN dependant.goes_on_after_failure
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
    ) AS dependant (goes_on_after_failure)
WHERE needed.id IS NOT NULL
LIMIT %(limit)s
"""

# Sent by admit, and the worker after a settle, in the transaction of ADMIT_DEPENDANTS. Locks the dependants that these
# predecessors may admit, and returns their ids. Indexes: unmet of dependencies, the primary key.
LOCK_DEPENDANTS = """
SELECT job.id
FROM
    skipqueue_dependency AS needed
    JOIN skipqueue_job AS job ON job.id = needed.job_id
WHERE
    needed.needs_job_id = ANY (%(ids)s::bigint[])
    AND NOT needed.is_met
    AND job.held
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

# Sent by admit, the worker after a settle, enqueue. Admits the dependants that no longer wait for a job, or discards
# them if a predecessor did not complete, and returns them. LOCK_DEPENDANTS has locked them in a statement before: if
# two predecessors end at the same moment, the later of the two statements sees both ends. A dependant that an operator
# has discarded stays discarded, but if it is retried, it need not wait. Reads each predecessor once. Indexes: the
# primary keys.
ADMIT_DEPENDANTS = joined(
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
            OVER needs AS failed_need
    FROM needed
    WINDOW needs AS (PARTITION BY job_id)
),
to_mark AS MATERIALIZED (
    SELECT needs.ctid AS place
    FROM skipqueue_dependency AS needs
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM judged WHERE is_met OR failed_need IS NOT NULL))
    ORDER BY needs.job_id, needs.position
    FOR UPDATE OF needs SKIP LOCKED
),
marked AS (
    UPDATE skipqueue_dependency AS needs
    SET is_met = true
    WHERE needs.ctid = ANY (ARRAY (SELECT place FROM to_mark))
)
UPDATE skipqueue_job AS job
SET held = NULL,
    status = CASE
        WHEN job.finished_at IS NOT NULL THEN job.status
        WHEN verdict.failed_need IS NOT NULL THEN 'discarded'
        WHEN job.status = 'blocked' THEN {status}
        ELSE job.status
    END,
    gate = CASE WHEN job.status = 'blocked' AND verdict.failed_need IS NULL THEN {gate} END,
    lease = CASE WHEN verdict.failed_need IS NULL OR job.finished_at IS NOT NULL THEN job.lease ELSE job.lease + 1 END,
    finished_at = CASE
        WHEN verdict.failed_need IS NULL THEN job.finished_at
        ELSE coalesce(job.finished_at, statement_timestamp())
    END,
    last_error = CASE
        WHEN verdict.failed_need IS NULL OR job.finished_at IS NOT NULL THEN job.last_error
        ELSE 'Discarded: it needs job ' || verdict.failed_need || ', which has not completed.'
    END
FROM (SELECT DISTINCT job_id, waits, failed_need FROM judged) AS verdict
WHERE
    job.id = verdict.job_id
    AND job.held
    AND (verdict.failed_need IS NOT NULL OR NOT verdict.waits)
RETURNING
    job.id,
    job.task,
    job.queue_name,
    job.status,
    job.gate,
    job.batch_id,
    job.metadata::text AS metadata,
    CASE WHEN job.finished_at = statement_timestamp() THEN verdict.failed_need END AS needs_job_id
""",
    **entering(column="job.{}", past="held"),
)

# Sent by admit, if these predecessors had no dependant to admit. Deletes the dependencies of deleted jobs, and marks
# the dependencies of jobs that no longer wait as met. Returns the number of dependencies that were deleted or marked.
# Indexes: unmet of dependencies, the primary key.
FORGET_DEPENDANTS = """
WITH left_over AS MATERIALIZED (
    SELECT
        needs.ctid AS place,
        (SELECT job.id FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NULL AS is_gone
    FROM skipqueue_dependency AS needs
    WHERE
        needs.needs_job_id = ANY (%(ids)s::bigint[])
        AND NOT needs.is_met
        AND (SELECT job.held FROM skipqueue_job AS job WHERE job.id = needs.job_id) IS NOT TRUE
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

# Sent by JobContext. Returns all jobs that this job needs, in order, with task, status and result, which are NULL if
# the needed job was deleted or pruned. Index: the primary keys.
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

# Sent by the admin. Returns some of the jobs that this job still waits for, failed and discarded jobs first. Each row
# also has the number of all jobs that this job still waits for. Index: the primary keys.
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


MOST_ROUNDS = 20
"""The maximum number of rounds in which one call admits dependants. Supervisors admit the rest."""


class NeededJob(NamedTuple):
    needs_job_id: int
    task: str | None
    """The name of the task; `None` if the job's row no longer exists."""
    status: str | None
    """`None` if the job was deleted."""
    result: str | None
    """JSON, not yet decoded."""
    is_gone: bool
    """Whether the row no longer exists."""


class UnmetNeed(NamedTuple):
    """A job that a dependant still waits for."""

    needs_job_id: int
    status: str | None
    """`None` if the job was deleted."""
    is_gone: bool
    """Whether the row no longer exists."""
    is_stuck: bool
    """Whether the job has failed or was discarded, and the dependant waits until it is retried and completes."""
    number: int
    """The number of all jobs that the dependant still waits for."""


@dataclass
class Dependants:
    """Counts which dependants one call has admitted or discarded."""

    admitted: Counter[str] = field(default_factory=Counter)
    """The number of jobs that were queued, by queue."""
    batch_ids: set[int] = field(default_factory=set)
    """The batches of the admitted jobs."""
    found_any: bool = False
    """Whether any job waited for the predecessors of the call, even if it still waits for other jobs."""
    discarded_any: bool = False


DEPENDENCY_CHECK = 1.0
"""The longest time in seconds between two checks of the dependency gate while jobs wait at it."""

MOST_PAGES = 20
"""The maximum number of pages of predecessors that one check reads."""


def hold(store: Store, spec: JobSpec, ids: Sequence[int]) -> list[Dependant]:
    """Make new jobs wait for the jobs in `spec.after`. Returns the new jobs that need not wait.

    Called in the transaction of the INSERT. Raises `InvalidOption` if a job in `spec.after` does not exist, or is in
    another database.
    """
    for id, database in spec.after:
        if database not in (None, store.alias):
            raise InvalidOption(
                f"after names job {id} of the database {database!r}, but the new job is in {store.alias!r}, and a job "
                "can wait only for jobs in its own database. Defer both jobs in one database, or let the task of the "
                "first job defer the second job."
            )
    needed = dict.fromkeys(need.id for need in spec.after)
    values = {"ids": as_array(ids), "needs": as_array(needed), "after_failure": spec.after_failure}
    if missing := [id for (id,) in store.rows(INSERT_DEPENDENCIES, values)]:
        raise InvalidOption(f"after names job {missing[0]}, which does not exist; it may have been deleted or pruned.")
    no_longer_waiting = _admit_or_discard(store, ids)
    if discarded := _newly_discarded(no_longer_waiting):
        event = DependantsDiscarded(store.alias, discarded)
        transaction.on_commit(lambda: store.send(event), using=store.alias, robust=True)
    wake_supervisors(store, [0.0])
    return no_longer_waiting


def admit_dependants(store: Store, ids: Iterable[int]) -> Dependants:
    """Admit or discard the jobs that wait only for these predecessors, and notify the workers.

    If a dependant is discarded, its own dependants are discarded or admitted too.
    """
    dependants = admit_silently(store, ids)
    wake(store, dependants.admitted)
    if dependants.admitted:
        store.send(JobsAdmitted(store.alias, dict(dependants.admitted)))
    return dependants


def admit_silently(store: Store, ids: Iterable[int], *, limit: int = BATCH_ROWS) -> Dependants:
    """Admit or discard the jobs that wait only for these predecessors. The caller notifies the workers."""
    dependants = Dependants()
    predecessor_ids = set(ids)
    for _ in range(MOST_ROUNDS):
        if not predecessor_ids:
            break
        with transaction.atomic(using=store.alias):
            locked = [id for (id,) in store.rows(LOCK_DEPENDANTS, {"ids": as_array(predecessor_ids), "limit": limit})]
            no_longer_waiting = _admit_or_discard(store, locked) if locked else []
        dependants.found_any = dependants.found_any or bool(locked)
        discarded_ids = _record(store, no_longer_waiting, dependants)
        may_have_more = len(locked) == limit  # after a full batch, the predecessors may have more dependants
        predecessor_ids = discarded_ids | (predecessor_ids if may_have_more else set())
    return dependants


def _admit_or_discard(store: Store, ids: Collection[int]) -> list[Dependant]:
    """Admit or discard each of these jobs that no longer waits for another job."""
    return [Dependant._make(row) for row in store.rows(ADMIT_DEPENDANTS, {"ids": as_array(ids)})]


def _newly_discarded(jobs: Iterable[Dependant]) -> list[Dependant]:
    """Return the jobs that were just discarded because of a needed job, not those that an operator had discarded."""
    return [job for job in jobs if job.needs_job_id is not None]


def _record(store: Store, jobs: Collection[Dependant], dependants: Dependants) -> set[int]:
    """Add these jobs to `dependants`, notify supervisors of blocked jobs, and send an event about jobs just discarded.

    Returns the ids of all discarded jobs.
    """
    dependants.admitted.update(job.queue_name for job in jobs if job.status == "queued")
    dependants.batch_ids |= {job.batch_id for job in jobs if job.status != "discarded" and job.batch_id is not None}
    if any(job.status == "blocked" for job in jobs):  # these jobs now wait at the gate of limits
        notify_supervisors(store, GATES_PAYLOAD)
    if discarded := _newly_discarded(jobs):
        dependants.discarded_any = True
        store.send(DependantsDiscarded(store.alias, discarded))
    return {job.id for job in jobs if job.status == "discarded"}


def predecessors(store: Store, *, after: int = 0, limit: int = BATCH_ROWS) -> dict[int, bool]:
    """Return the ids of the next predecessors after an id, and for each whether it may admit a dependant."""
    return dict(store.rows(PREDECESSORS, {"after": after, "limit": limit}))


def forget_dependants(store: Store, ids: Collection[int], *, limit: int = BATCH_ROWS) -> bool:
    """Clear the dependencies of jobs that no longer wait for these predecessors. Returns whether there were any."""
    values = {"ids": as_array(ids), "limit": limit}
    for earlier_rounds in range(MOST_ROUNDS):
        [(number_cleared,)] = store.rows(FORGET_DEPENDANTS, values)
        if number_cleared < limit:
            return bool(earlier_rounds or number_cleared)
    return True


class DependencyGate:
    """Holds a job until the jobs that it needs are finished.

    A worker that settles a job of a batch admits the jobs that need it. This gate checks all predecessors, a few in
    each call.
    """

    name = "held"

    def __init__(self) -> None:
        self._after: dict[str, int] = {}  # the id after which the next check begins, by database

    def admit(self, store: Store, *, limit: int) -> GateResult:
        ready, page_end = self._ready(store, limit=limit)
        dependants = admit_silently(store, ready, limit=limit)
        has_discarded = dependants.discarded_any
        if ready and not dependants.found_any:
            has_discarded = forget_dependants(store, ready, limit=limit)
            if not has_discarded:
                self._after[store.alias] = page_end  # rows that another session has locked must not delay later rows
        return GateResult(dependants.admitted, has_discarded)

    def next_due(self, store: Store) -> float | None:
        """Return 0 if a job may be admitted now, otherwise the seconds until the next check; `None` if no job waits."""
        ready, _page_end = self._ready(store, limit=BATCH_ROWS)
        if ready:
            return 0.0
        return DEPENDENCY_CHECK if predecessors(store, limit=1) else None

    def _ready(self, store: Store, *, limit: int) -> tuple[list[int], int]:
        """Return the next predecessors that may admit a dependant, and the id after which the next check continues.

        Starts where the last check has ended. Reads each predecessor at most once, and at most `MOST_PAGES` pages.
        """
        alias = store.alias
        start = self._after.get(alias, 0)
        for _ in range(MOST_PAGES):
            page = predecessors(store, after=self._after.get(alias, 0), limit=limit)
            page_end = max(page) if len(page) == limit else 0  # 0 after the last page: the next check begins again
            if ready := [id for id, may_admit in page.items() if may_admit]:
                return ready, page_end
            self._after[alias] = page_end
            if not (page_end or start):
                break  # this check began at the first predecessor, and has read the last page
            if not page_end:
                start = 0
        return [], 0

"""Find lost leases, locked rows, and workers that still hold jobs; write the heartbeat of a job claimed by hand.

Workers and supervisors call these functions, and code that claims jobs in its own loop, without a worker process.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..values.outcomes import LostLease
from ..values.records import LeaseRef
from .parameters import leases_as_values

if TYPE_CHECKING:
    from .store import Store

# Sent by workers. Returns each of these leases that is no longer valid, with the columns that show how it ended. These
# columns are NULL if the row is gone. If an operator cancelled or discarded the job, the last record in `operations`
# says so, because only a retry can follow, and a retry adds its own record. Index: the primary key.
LOST_LEASES = """
SELECT
    held.id, held.lease, job.lease - held.lease AS raised_by, job.status, job.locked_by, job.last_error,
    job.errors::text, job.deaths IS NOT NULL AS has_deaths,
    job.status = 'discarded' AND job.operations -> -1 ->> 'verb' IN ('cancel', 'discard') AS is_ended_by_hand
FROM
    unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
    LEFT JOIN skipqueue_job AS job ON job.id = held.id
WHERE job.lease IS DISTINCT FROM held.lease
"""

# Sent by workers, after a settle timed out and before a release. Returns the ids of the jobs whose rows another
# transaction has locked. The caller leaves these jobs out, because a statement with a locked row waits until the lock
# timeout, and then writes none of its rows. Of the `held` rows, `unlocked` has the rows that could be locked at once.
# A deleted row does not count as locked. Index: the primary key.
LOCKED_ROWS = """
WITH held AS MATERIALIZED (
    SELECT job.id
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease) JOIN skipqueue_job AS job
        USING (id, lease)
),
unlocked AS MATERIALIZED (
    SELECT job.id
    FROM skipqueue_job AS job
    WHERE job.id = ANY (ARRAY (SELECT id FROM held))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM held
EXCEPT
SELECT id FROM unlocked
"""

# Sent by supervisors after workers died. Returns the ids of the workers that still hold jobs because the recovery has
# skipped locked rows. Index: recover. For each worker, the index is walked until one of the worker's jobs is found.
# Without ORDER BY, the planner would expect to find a matching row early in the table, and read the table instead.
STILL_HOLDING = """
SELECT worker.id
FROM unnest(%(worker_ids)s::text[]) AS worker (id)
WHERE EXISTS (
    SELECT FROM (
        SELECT 1 FROM skipqueue_job AS job
        WHERE job.status = 'running' AND job.locked_by = worker.id
        ORDER BY job.locked_at
        LIMIT 1
    ) AS held
)
"""

# Sent by Job.heartbeat, for code that runs jobs without a worker process. Returns the id if the lease is still valid.
# Index: the primary key.
HEARTBEAT_JOB = """
UPDATE skipqueue_job AS job
SET locked_at = statement_timestamp()
WHERE job.id = %(id)s AND job.lease = %(lease)s
RETURNING job.id
"""


def still_holding(store: "Store", worker_ids: Sequence[str]) -> set[str]:
    """The ids of these workers that still hold jobs."""
    return {id for (id,) in store.rows(STILL_HOLDING, {"worker_ids": list(worker_ids)})}


def lost_leases(store: "Store", leases: Iterable[LeaseRef]) -> dict[LeaseRef, LostLease]:
    """Return the leases that are no longer valid, each with the columns that show how it ended."""
    rows = store.rows(LOST_LEASES, leases_as_values(leases))
    return {(id, lease): LostLease(*columns) for id, lease, *columns in rows}


def locked(store: "Store", leases: Iterable[LeaseRef]) -> set[int]:
    """The ids of the jobs whose rows another transaction has locked at this moment. Does not wait for locks."""
    return {id for (id,) in store.rows(LOCKED_ROWS, leases_as_values(leases))}


def heartbeat_job(store: "Store", ref: LeaseRef) -> bool:
    """Write the heartbeat of a job that was claimed by hand. Returns whether its lease is still valid."""
    id, lease = ref
    return bool(store.rows(HEARTBEAT_JOB, {"id": id, "lease": lease}))

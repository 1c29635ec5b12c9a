"""Release claimed jobs: put them back into their queues without counting the attempt.

Workers and supervisors call these functions, and code that claims jobs in its own loop, without a worker process.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from ..events.events import JobsReleased
from ..values.records import LeaseRef
from .fragments import GATE_KEY, joined, returning
from .gates import admit_by_keys
from .notify import GATES_PAYLOAD, notify_supervisors, wake
from .parameters import leases_as_values

if TYPE_CHECKING:
    from .store import Store

# Sent by `release`. Puts jobs back into their queues without counting the attempt. A row whose lease does not match
# stays unchanged. Returns the id and queue of each job. If a job was claimed ahead without a permit of its limit, also
# returns the gate and key for which it waits again. `interrupted`: the jobs were running, so their rows record which
# worker gave them up, and when. `operations` keeps the newest 50 records, and the regular expression removes the random
# end of the worker's id. `later`: the jobs are not due again for up to 10 s. Index: the primary key.
_RELEASE = """
UPDATE skipqueue_job AS job
SET status = CASE
        WHEN %(later)s::boolean THEN 'scheduled'
        WHEN ({gate}) IS NOT NULL THEN 'blocked'
        ELSE 'queued'
    END,
    run_after = CASE
        WHEN %(later)s::boolean THEN statement_timestamp() + random() * interval '10 seconds'
        ELSE job.run_after
    END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    gate = CASE WHEN NOT %(later)s::boolean THEN {gate} END,
    started_at = NULL,
    operations = CASE
        WHEN %(interrupted)s::boolean
        THEN COALESCE(
            CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
        ) || jsonb_build_object(
            'at', statement_timestamp(), 'verb', 'release', 'by', regexp_replace(job.locked_by, ':[0-9a-f]{12}$', ''),
            'reason', '', 'attempts', job.attempts, 'since', job.started_at
        )
        ELSE job.operations
    END
FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::bigint[])) AS held (id, lease)
WHERE job.id = held.id AND job.lease = held.lease{only}
RETURNING job.id, job.queue_name, job.gate, {key}
"""

_GATE_AND_KEY = {"gate": returning(charged=False), "key": GATE_KEY}

RELEASE = joined(_RELEASE, **_GATE_AND_KEY, only="")

# Sent by supervisors after a worker died, and by a worker after its connection broke. Releases the jobs that the worker
# holds but has not started. Returns the columns of RELEASE. A live worker may hold such jobs because a claim was
# committed but its answer was lost, or because an earlier release skipped a locked row. Supervisors recover only the
# jobs of dead workers, so a live worker must release these jobs itself. Index: recover.
RELEASE_ORPHANS = joined(
    """
WITH orphan AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE
        status = 'running'
        AND locked_by = %(worker_id)s
        AND locked_at <= COALESCE(%(claimed_until)s, 'infinity'::timestamptz)
        AND id <> ALL (%(known)s::bigint[])
    ORDER BY locked_at
    LIMIT 10000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE skipqueue_job AS job
SET status = CASE WHEN ({gate}) IS NOT NULL THEN 'blocked' ELSE 'queued' END,
    lease = job.lease + 1,
    attempts = job.attempts - 1,
    locked_at = NULL,
    locked_by = '',
    gate = {gate},
    started_at = NULL
WHERE job.id = ANY (ARRAY (SELECT id FROM orphan))
RETURNING job.id, job.queue_name, job.gate, {key}
""",
    **_GATE_AND_KEY,
)


def release(store: "Store", leases: Iterable[LeaseRef], *, interrupted: bool = False, later: bool = False) -> set[int]:
    """Put jobs back into their queues without counting the attempt. Returns the ids whose lease was still valid.

    interrupted: whether the jobs were running. If so, their rows record the interruption.
    later: make the jobs wait for up to 10 seconds first. Meanwhile they give up their permits.
    """
    values = {**leases_as_values(leases), "interrupted": interrupted, "later": later}
    return _announce_release(store, store.rows(*store.guarded(RELEASE, values)), later=later)


def release_orphans(
    store: "Store", worker_id: str, *, known: Iterable[int], claimed_until: datetime | None = None
) -> set[int]:
    """Release the jobs that a worker holds but does not know of, for example because the answer to a claim was lost.

    known: the ids of the worker's other jobs, which are not released.
    claimed_until: release only jobs that were claimed at this time or before it, by the database's clock.
    """
    values = {"worker_id": worker_id, "known": list(known), "claimed_until": claimed_until}
    return _announce_release(store, store.rows(RELEASE_ORPHANS, values))


def _announce_release(store: "Store", rows: list[tuple[int, str, str | None, str]], *, later: bool = False) -> set[int]:
    """Notify the workers, admit jobs of the freed keys, and send the event. Returns the ids of the released jobs."""
    if rows and later:
        notify_supervisors(store, GATES_PAYLOAD)  # the jobs are due soon, and their permits are free
    else:
        wake(store, (queue_name for _, queue_name, gate, _ in rows if gate is None))
        keys_by_gate: dict[str, set[str]] = {}
        for _, _, gate, key in rows:
            if gate is not None:
                keys_by_gate.setdefault(gate, set()).add(key)
        wake(store, admit_by_keys(store, keys_by_gate))
    ids = [id for id, *_ in rows]
    if ids:
        store.send(JobsReleased(store.alias, ids))
    return set(ids)

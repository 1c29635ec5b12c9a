"""The gates keep jobs out of their queues until a condition holds, then admit them: scheduled jobs when they are due.

A job waits at a gate as `scheduled` or `blocked`, outside the claim index. A gate has two halves. Its condition, in
`queue.fragments`, is checked when a job enters from outside: at an enqueue, a retry, a manual retry, and when the
previous gate admits the job. Its class, here, admits: supervisors call it at intervals, and workers before a drain
ends.

An admission skips rows that others have locked, so several supervisors may admit at the same time.
"""

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from django.db import DatabaseError

from ..events.events import JobsAdmitted
from ..parts.batches.dependencies import DependencyGate
from ..parts.limits.admit import LimitGate, admit_or_announce, sweep_keys, with_rates
from ..parts.rates.admit import RateGate, admit_rates, sweep_rates
from ..values.records import GateResult
from .fragments import entering, joined
from .notify import wake
from .parameters import BATCH, is_refused

if TYPE_CHECKING:
    from .store import Store

# supervisor, worker before a drain ends → by queue: the number of jobs that are queued now, and the keys of those that
# wait at the gate of limits now, or at that of rates. Index: admit.
ADMIT = joined(
    """
WITH due AS MATERIALIZED (
    SELECT id
    FROM skipqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
admitted AS (
    UPDATE skipqueue_job AS job
    SET status = {status},
        gate = {gate}
    WHERE job.id = ANY (ARRAY (SELECT id FROM due))
    RETURNING job.queue_name, job.status, job.gate, job.limit_key, job.rate_key
)
SELECT
    queue_name,
    count(*) FILTER (WHERE status = 'queued'),
    array_agg(limit_key) FILTER (WHERE gate = 'limit'),
    array_agg(rate_key) FILTER (WHERE gate = 'rate')
FROM admitted
GROUP BY queue_name
""",
    **entering(column="job.{}", past="time"),
)

# supervisor → the seconds until the next scheduled job is due, below 0 if it is overdue; no row if no job is scheduled.
# Index: admit.
NEXT_DUE = """
SELECT extract(epoch FROM run_after - statement_timestamp())::float8
FROM skipqueue_job
WHERE status = 'scheduled'
ORDER BY run_after, id
LIMIT 1
"""


class Gate(Protocol):
    """Admits jobs. Any number of processes may call it at the same time."""

    name: str
    """The name of its condition in `queue.fragments.CONDITIONS`."""

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        """Admit up to `limit` jobs whose condition has ended, skipping locked rows."""

    def next_due(self, store: "Store") -> float | None:
        """The seconds until there may be a job to admit; 0 or less: now. `None` if no job waits at this gate."""


class TimeGate:
    name = "time"

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        rows = store.rows(ADMIT, {"limit": limit})
        admitted = Counter({queue_name: number for queue_name, number, _, _ in rows})
        if blocked := {key for _, _, keys, _ in rows for key in keys or ()}:
            admitted.update(with_rates(store, admit_or_announce(store, sorted(blocked))))
        if rated := {key for *_, keys in rows for key in keys or ()}:
            admitted.update(admit_rates(store, rated))
        return GateResult({queue_name: number for queue_name, number in admitted.items() if number})

    def next_due(self, store: "Store") -> float | None:
        return next((seconds for (seconds,) in store.rows(NEXT_DUE)), None)


LIMIT_GATE, RATE_GATE = LimitGate(), RateGate()


GATES: tuple[Gate, ...] = (TimeGate(), DependencyGate(), LIMIT_GATE, RATE_GATE)
"""In the order of their conditions."""


def admit(store: "Store", *, limit: int = BATCH) -> GateResult:
    """Admit up to `limit` jobs at each gate whose condition has ended."""
    admitted: Counter[str] = Counter()
    has_discarded = False
    refusals: list[DatabaseError] = []
    for gate in GATES:
        try:
            passed = gate.admit(store, limit=limit)
        except DatabaseError as error:
            if not is_refused(error):
                raise
            refusals.append(error)  # of a row that breaks the gate's statement: the other gates go on
            continue
        admitted.update(passed.by_queue)
        has_discarded = has_discarded or passed.has_discarded
    wake(store, admitted)
    if admitted:
        store.send(JobsAdmitted(store.alias, dict(admitted)))
    if refusals:
        raise refusals[0]
    return GateResult(dict(admitted), has_discarded)


def sweep_limits(store: "Store", *, limit: int = BATCH) -> bool:
    """Admit jobs of all keys with free permits or tokens: a drain may be over. Returns whether any was admitted."""
    admitted = sweep_keys(store, limit=limit) or sweep_rates(store)
    wake(store, admitted)
    return bool(admitted)


def sweep_limits_soon(store: "Store") -> None:
    """Have the next `admit` look at all keys with blocked jobs."""
    LIMIT_GATE.sweep_now(store.alias)
    RATE_GATE.sweep_now(store.alias)


def admit_limits_soon(store: "Store", keys: Collection[str]) -> None:
    LIMIT_GATE.want(store.alias, keys)


def admit_rates_soon(store: "Store", keys: Collection[str]) -> None:
    RATE_GATE.want(store.alias, keys)


def next_due(store: "Store") -> float | None:
    """The seconds until a gate may have a job to admit, below 0 if one is overdue; `None` if no job waits."""
    return min((due for gate in GATES if (due := gate.next_due(store)) is not None), default=None)

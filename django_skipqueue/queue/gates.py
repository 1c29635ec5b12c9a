"""The gates keep jobs out of their queues until a condition holds, then admit them: scheduled jobs when they are due.

A job waits at a gate as `scheduled` or `blocked`, outside the claim index. A gate has two halves. Its condition, in
`queue.fragments`, is checked when a job enters from outside: at an enqueue, a retry, a manual retry, and when the
previous gate admits the job. Its object, a `Gate`, admits: supervisors call it at intervals, and workers before a drain
ends. The core has the gate of time; parts give the others.

An admission skips rows that others have locked, so several supervisors may admit at the same time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeGuard

from django.db import DatabaseError, connections, transaction

from ..events.events import JobsAdmitted
from ..values.part import gates_of_parts
from ..values.records import GateResult
from .fragments import CONDITIONS, GATE_KEY, entering, joined
from .notify import GATES_PAYLOAD, notify_of_keys, notify_supervisors, wake
from .parameters import BATCH_ROWS, Admitted, is_refused

if TYPE_CHECKING:
    from .store import Store

# supervisor, worker before a drain ends → by queue and gate: the number of jobs that are queued now, and the keys of
# those that wait at the gate now. Index: admit.
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
    RETURNING job.queue_name, job.gate, {key} AS key
)
SELECT queue_name, gate, count(*), array_agg(key) FROM admitted GROUP BY queue_name, gate
""",
    **entering(column="job.{}", past="time"),
    key=GATE_KEY,
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

    @property
    def name(self) -> str:
        """The name of its condition in `queue.fragments.CONDITIONS`."""

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        """Admit up to `limit` jobs whose condition has ended, skipping locked rows."""

    def next_due(self, store: "Store") -> float | None:
        """The seconds until there may be a job to admit; 0 or less: now. `None` if no job waits at this gate."""


class KeyGate(Gate, Protocol):
    """Admits by keys: a job waits until its key has room for it."""

    @property
    def enqueue_alone(self) -> str | None:
        """A statement that inserts a job, commits, and admits the job if it can be, as `ENQUEUE_AND_NOTIFY` does."""

    def admit_keys(self, store: "Store", keys: Collection[str]) -> Admitted:
        """Admit jobs of these keys. Notifies the supervisors of the keys that another transaction has locked."""

    def admit_new(self, store: "Store", keys: Mapping[str, int | None], *, is_urgent: bool) -> Admitted:
        """Admit jobs that were enqueued, after the commit.

        keys: each key with the id of its job, or `None` if there are several jobs.
        is_urgent: a job may rank before a queued job of its key. The supervisors are notified, and look whether it
        does.
        """

    def sweep(self, store: "Store", *, limit: int) -> bool:
        """Admit jobs of all keys that have room. Returns whether any was admitted. Notifies the workers."""

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Have the next `admit` check these keys."""

    def sweep_now(self, alias: str) -> None:
        """Have the next `admit` check all keys with blocked jobs."""


class TimeGate:
    name = "time"

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        rows = store.rows(ADMIT, {"limit": limit})
        admitted = Counter({queue_name: number for queue_name, gate, number, _ in rows if gate is None})
        waiting: dict[str, set[str]] = {}
        for _, gate, _, keys in rows:
            waiting.setdefault(gate, set()).update(keys)
        return GateResult(dict(admitted + Counter(admit_by_keys(store, waiting))))

    def next_due(self, store: "Store") -> float | None:
        return next((seconds for (seconds,) in store.rows(NEXT_DUE)), None)


TIME_GATE = TimeGate()


GATE_ORDER = {condition.gate: place for place, condition in enumerate(CONDITIONS)}


def gates() -> list[Gate]:
    """All gates, in the order of their conditions."""
    return sorted((TIME_GATE, *gates_of_parts), key=lambda gate: GATE_ORDER[gate.name])


def key_gates() -> Iterator[KeyGate]:
    """The gates that admit by keys, in the order of their conditions."""
    return filter(_has_keys, gates())


def _has_keys(gate: Gate) -> TypeGuard[KeyGate]:
    return hasattr(gate, "admit_keys")


def admit(store: "Store", *, limit: int = BATCH_ROWS) -> GateResult:
    """Admit up to `limit` jobs at each gate whose condition has ended."""
    admitted: Counter[str] = Counter()
    has_discarded = False
    refusals: list[DatabaseError] = []
    for gate in gates():
        try:
            passed = gate.admit(store, limit=limit)
        except DatabaseError as error:
            if not is_refused(error):
                raise
            refusals.append(error)  # one row breaks the statement of this gate: the other gates go on
            continue
        admitted.update(passed.by_queue)
        has_discarded = has_discarded or passed.has_discarded
    wake(store, admitted)
    if admitted:
        store.send(JobsAdmitted(store.alias, dict(admitted)))
    if refusals:
        raise refusals[0]
    return GateResult(dict(admitted), has_discarded)


def admit_by_keys(store: "Store", waiting: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Admit jobs that wait at gates with keys. Returns their number, by queue. Notifies nobody of them.

    waiting: the keys, by the name of the gate.
    """
    return _through_key_gates(waiting, lambda gate, keys: gate.admit_keys(store, keys))


def _through_key_gates(
    waiting: Mapping[str, Collection[str]], admit: Callable[[KeyGate, list[str]], Admitted]
) -> dict[str, int]:
    """Admit jobs of these keys at each gate, and at the next gate jobs that the gate has passed on."""
    admitted: Counter[str] = Counter()
    later: frozenset[str] = frozenset()
    for gate in key_gates():
        if keys := sorted({*waiting.get(gate.name, ()), *later}):
            passed = admit(gate, keys)
            admitted.update(passed.counts)
            later = passed.later
    return dict(admitted)


def with_later(store: "Store", name: str, passed: Admitted) -> dict[str, int]:
    """Admit jobs that have passed the gate of this name and now wait at the next gate.

    Returns the number of jobs, by queue, that either gate has admitted.
    """
    following = gate_after(name) if passed.later else None
    if following is None:
        return dict(passed.counts)
    return dict(Counter(passed.counts) + Counter(admit_by_keys(store, {following.name: passed.later})))


def gate_after(name: str) -> KeyGate | None:
    """The next gate with keys after the gate of this name."""
    found = iter(key_gates())
    return next((next(found, None) for gate in found if gate.name == name), None)


def sweep_gates(store: "Store", *, limit: int = BATCH_ROWS) -> bool:
    """Admit jobs of all keys that have room, before a drain ends. Returns whether any job was admitted."""
    return any(gate.sweep(store, limit=limit) for gate in key_gates())


def sweep_gates_soon(store: "Store") -> None:
    """Have the next `admit` check all keys with blocked jobs."""
    for gate in key_gates():
        gate.sweep_now(store.alias)


def next_due(store: "Store") -> float | None:
    """The seconds until a gate may have a job to admit, below 0 if a job is overdue; `None` if no job waits."""
    return min((due for gate in gates() if (due := gate.next_due(store)) is not None), default=None)


@dataclass
class Admission:
    """Admits jobs of these keys, once the transaction that enqueued them is committed."""

    store: "Store"
    keys: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """By the name of the gate: each key with the id of its job, or `None` if there are several jobs."""
    is_urgent: bool = False
    """Whether one of the jobs may rank before a queued job of its key."""

    def __post_init__(self) -> None:
        self.__qualname__ = type(self).__qualname__  # Django's log line about a hook that fails has it

    def add(self, waiting: Mapping[str, Mapping[str, int | None]], *, is_urgent: bool) -> None:
        for gate, added in waiting.items():
            keys = self.keys.setdefault(gate, {})
            keys.update({key: None if key in keys else id for key, id in added.items()})
        self.is_urgent = self.is_urgent or is_urgent

    def __call__(self) -> None:
        """Admit the jobs now. If that fails, notify the supervisors, which admit them."""
        store, keys = self.store, self.keys
        try:
            admitted = _through_key_gates(
                keys,
                lambda gate, waiting: gate.admit_new(
                    store, {key: keys.get(gate.name, {}).get(key) for key in waiting}, is_urgent=self.is_urgent
                ),
            )
        except DatabaseError:
            notify_supervisors(store, GATES_PAYLOAD)
            raise  # Django logs it: the caller's rows are committed
        wake(store, admitted)
        if admitted:
            store.send(JobsAdmitted(store.alias, admitted))


def admit_after_commit(
    store: "Store", waiting: Mapping[str, Mapping[str, int | None]], *, is_urgent: bool = False
) -> None:
    """Admit jobs of these keys after the caller's transaction is committed. The arguments are those of `Admission`.

    An admission within the transaction would lock the keys, and stop all jobs of these keys until the commit.
    """
    connection = connections[store.alias]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        for gate in key_gates():  # the caller manages the transaction by hand: there is no hook
            notify_of_keys(store, gate.name, waiting.get(gate.name, ()))
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Admission) and hook.store.alias == store.alias:
            hook.add(waiting, is_urgent=is_urgent)
            return
    admission = Admission(store)
    admission.add(waiting, is_urgent=is_urgent)
    transaction.on_commit(admission, using=store.alias, robust=True)

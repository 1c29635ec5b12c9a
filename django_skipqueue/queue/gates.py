"""A gate keeps jobs waiting, and later admits them to their queues. The time gate admits jobs when they are due.

A job waits at a gate with the status `scheduled` or `blocked`, so that it is not in the claim index. A gate has an SQL
condition and a `Gate` object. The condition, in `queue.fragments`, is checked when a job is enqueued or retried, and
when the previous gate admits the job. The `Gate` object admits jobs: supervisors call it at intervals, and so do
workers with `--drain` before they end. The core has only the time gate. The other gates belong to parts, such as
limits.

An admission skips rows that other transactions have locked, so several supervisors may admit jobs at the same time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
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

# Sent by supervisors, and by a worker before its drain ends. Lets jobs that are due pass the time gate. Returns rows of
# queue, next gate, number of jobs, and keys. Without a next gate, the jobs are queued now; otherwise they now wait at
# that gate, for these keys. Index: admit.
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

# Sent by supervisors. Returns the seconds until the next scheduled job is due, below 0 if it is overdue; no row if no
# job is scheduled. Index: admit.
NEXT_DUE = """
SELECT extract(epoch FROM run_after - statement_timestamp())::float8
FROM skipqueue_job
WHERE status = 'scheduled'
ORDER BY run_after, id
LIMIT 1
"""


class Gate(Protocol):
    """Admits jobs that wait at one gate. Several processes may call it at the same time."""

    @property
    def name(self) -> str:
        """The gate's name, which its condition in `queue.fragments.CONDITIONS` has too."""

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        """Admit up to `limit` jobs that no longer have to wait, skipping locked rows."""

    def next_due(self, store: "Store") -> float | None:
        """The seconds until a job may have to be admitted; 0 or less means now. `None` if no job waits at this gate."""


class KeyGate(Gate, Protocol):
    """A gate that admits jobs by key, such as the key of a limit: a job waits until its key has room for it."""

    @property
    def enqueue_alone(self) -> str | None:
        """One statement that inserts, commits and admits a job if its key has room; `None` if the gate has none."""

    def admit_keys(self, store: "Store", keys: Collection[str]) -> Admitted:
        """Admit jobs of these keys. If another transaction has locked a key, notify the supervisors of that key."""

    def admit_new(self, store: "Store", keys: Mapping[str, int | None], *, is_urgent: bool) -> Admitted:
        """Admit new jobs after the commit of the transaction that enqueued them.

        keys: each key with the id of its new job, or with `None` if it has several new jobs.
        is_urgent: whether a new job may rank before a queued job of its key. If so, notify the supervisors, which then
        compare the ranks.
        """

    def sweep(self, store: "Store", *, limit: int) -> bool:
        """Admit jobs of all keys that have room, and notify the workers. Returns whether any job was admitted."""

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Make the next call of `admit` check these keys."""

    def sweep_now(self, alias: str) -> None:
        """Make the next call of `admit` check all keys with blocked jobs."""


class TimeGate:
    name = "time"

    def admit(self, store: "Store", *, limit: int) -> GateResult:
        rows = store.rows(ADMIT, {"limit": limit})
        queued = Counter({queue_name: count for queue_name, next_gate, count, _ in rows if next_gate is None})
        keys_by_gate: dict[str, set[str]] = {}
        for _, next_gate, _, keys in rows:
            keys_by_gate.setdefault(next_gate, set()).update(keys)
        return GateResult(dict(queued + Counter(admit_by_keys(store, keys_by_gate))))

    def next_due(self, store: "Store") -> float | None:
        return next((seconds for (seconds,) in store.rows(NEXT_DUE)), None)


TIME_GATE = TimeGate()


GATE_ORDER = {condition.gate: position for position, condition in enumerate(CONDITIONS)}


def gates() -> list[Gate]:
    """All gates, in the order of their conditions."""
    return sorted((TIME_GATE, *gates_of_parts), key=lambda gate: GATE_ORDER[gate.name])


def key_gates() -> Iterator[KeyGate]:
    """The gates that admit by keys, in the order of their conditions."""
    return filter(_has_keys, gates())


def _has_keys(gate: Gate) -> TypeGuard[KeyGate]:
    return hasattr(gate, "admit_keys")


def admit(store: "Store", *, limit: int = BATCH_ROWS) -> GateResult:
    """Admit, at each gate, up to `limit` jobs that no longer have to wait."""
    admitted: Counter[str] = Counter()
    has_discarded = False
    refusals: list[DatabaseError] = []
    for gate in gates():
        try:
            result = gate.admit(store, limit=limit)
        except DatabaseError as error:
            if not is_refused(error):
                raise
            refusals.append(error)  # a bad row makes this gate's statement fail, but the other gates can go on
            continue
        admitted.update(result.by_queue)
        has_discarded = has_discarded or result.has_discarded
    wake(store, admitted)
    if admitted:
        store.send(JobsAdmitted(store.alias, dict(admitted)))
    if refusals:
        raise refusals[0]
    return GateResult(dict(admitted), has_discarded)


def admit_by_keys(store: "Store", waiting: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Admit jobs that wait at gates with keys. Returns the number of admitted jobs by queue. Does not notify workers.

    waiting: for each gate name, the keys of the waiting jobs.
    """
    return _through_key_gates(waiting, lambda gate, keys: gate.admit_keys(store, keys))


def _through_key_gates(
    waiting: Mapping[str, Collection[str]], admit: Callable[[KeyGate, list[str]], Admitted]
) -> dict[str, int]:
    """Call `admit` for each gate with its waiting keys, and the keys of jobs that the previous gate has let through."""
    admitted: Counter[str] = Counter()
    keys_passed_on: frozenset[str] = frozenset()
    for gate in key_gates():
        if keys := sorted({*waiting.get(gate.name, ()), *keys_passed_on}):
            passed = admit(gate, keys)
            admitted.update(passed.counts)
            keys_passed_on = passed.later
    return dict(admitted)


def with_later(store: "Store", name: str, passed: Admitted) -> dict[str, int]:
    """Admit jobs which the gate `name` has let through, and which now wait at the next gate.

    Returns the number of jobs that either of the two gates has admitted to a queue, by queue.
    """
    following = gate_after(name) if passed.later else None
    if following is None:
        return dict(passed.counts)
    return dict(Counter(passed.counts) + Counter(admit_by_keys(store, {following.name: passed.later})))


def gate_after(name: str) -> KeyGate | None:
    """The next gate with keys after the gate `name`; `None` if there is none."""
    next_gates = {gate.name: next_gate for gate, next_gate in pairwise(key_gates())}
    return next_gates.get(name)


def sweep_gates(store: "Store", *, limit: int = BATCH_ROWS) -> bool:
    """Admit jobs of all keys that have room. A worker calls this before its drain ends.

    Returns whether any job was admitted.
    """
    return any(gate.sweep(store, limit=limit) for gate in key_gates())


def sweep_gates_soon(store: "Store") -> None:
    """Make the next call of `admit` check all keys with blocked jobs."""
    for gate in key_gates():
        gate.sweep_now(store.alias)


def next_due(store: "Store") -> float | None:
    """The seconds until a gate may have a job to admit, below 0 if a job is overdue; `None` if no job waits."""
    return min((due for gate in gates() if (due := gate.next_due(store)) is not None), default=None)


@dataclass
class Admission:
    """An on-commit hook that admits the new jobs of these keys after the transaction that enqueued the jobs."""

    store: "Store"
    keys: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """By gate name: each key with the id of its new job, or with `None` if it has several new jobs."""
    is_urgent: bool = False
    """Whether a new job may rank before a job of its key that is already queued."""

    def __post_init__(self) -> None:
        self.__qualname__ = type(self).__qualname__  # Django logs this attribute if the hook fails

    def add(self, waiting: Mapping[str, Mapping[str, int | None]], *, is_urgent: bool) -> None:
        """Add the keys of further new jobs of the transaction."""
        for gate, added in waiting.items():
            keys = self.keys.setdefault(gate, {})
            keys.update({key: None if key in keys else id for key, id in added.items()})
        self.is_urgent = self.is_urgent or is_urgent

    def __call__(self) -> None:
        """Admit the jobs now. If this fails, notify the supervisors, so that they admit the jobs."""
        store, job_ids_by_gate = self.store, self.keys
        try:
            admitted = _through_key_gates(
                job_ids_by_gate,
                lambda gate, waiting_keys: gate.admit_new(
                    store,
                    {key: job_ids_by_gate.get(gate.name, {}).get(key) for key in waiting_keys},
                    is_urgent=self.is_urgent,
                ),
            )
        except DatabaseError:
            notify_supervisors(store, GATES_PAYLOAD)
            raise  # Django only logs this error, because the caller's rows are already committed
        wake(store, admitted)
        if admitted:
            store.send(JobsAdmitted(store.alias, admitted))


def admit_after_commit(
    store: "Store", waiting: Mapping[str, Mapping[str, int | None]], *, is_urgent: bool = False
) -> None:
    """Admit jobs of these keys after the caller's transaction is committed. For the arguments see `Admission`.

    Within the transaction, an admission would lock the keys, so that no other job of these keys could start until the
    commit.
    """
    connection = connections[store.alias]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        for gate in key_gates():  # without `atomic`, Django calls no on-commit hooks
            notify_of_keys(store, gate.name, waiting.get(gate.name, ()))
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Admission) and hook.store.alias == store.alias:
            hook.add(waiting, is_urgent=is_urgent)
            return
    admission = Admission(store)
    admission.add(waiting, is_urgent=is_urgent)
    transaction.on_commit(admission, using=store.alias, robust=True)

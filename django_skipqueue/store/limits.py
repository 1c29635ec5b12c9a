"""The methods that admit jobs by the limits of their keys, and that limit queues."""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, connections, transaction
from psycopg.pq import TransactionStatus

from ..admission import lone_sql, queue_sql, sql
from ..admission.queues import key_of
from ..columns import check_columns
from ..events.events import JobsAdmitted, QueueLimited, QueueRated
from ..events.sinks import Send, send
from ..exceptions import InvalidOption
from ..values.gate_result import GateResult
from ..values.queue_settings import CONCURRENCY, is_concurrency
from ..values.rates import burst_of, interval_of
from .notify import (
    LIMIT_PREFIX,
    LIMITS_PAYLOAD,
    QUEUES_PAYLOAD,
    RATE_PREFIX,
    notify_of_keys,
    notify_supervisors,
    wake,
    wake_supervisors,
)
from .parameters import Admitted, Rows, Statement, as_array, fetched, noted, pipelined
from .rates import Rating, admit_rates
from .statements import BATCH, Statements

KEYS_AT_ONCE = 1_000
"""Keys that are admitted in one transaction, at most."""

RATES_AFTER_COMMIT = 100
"""Keys of rates that the caller admits after its commit, at most: the supervisors are asked to admit more."""

MISSED_INTERVAL = 0.02
"""Seconds until a supervisor looks again at a key that another transaction had locked; twice as many each time."""

SWEEP_INTERVAL = 1.0
"""Seconds between two sweeps over the keys with blocked jobs, at least. Mostly, jobs are admitted without a sweep: by
the worker that settles a job of their key, or right after their enqueue."""

SWEEP_SHARE = 1 / 20
"""The share of the time that the sweeps of one process take, at most."""

NOTIFIED_SHARE = 1 / 2
"""The same while notifications ask for them that do not name the keys."""


def admission(ids: Iterable[int], keys: Iterable[str], *, claims: bool = False) -> list[Statement | None]:
    """The two statements that admit jobs of the keys of these jobs, and of these keys.

    claims: CLAIM_OR_ADMIT follows, and admits those that it does not claim.
    """
    admit = sql.CHOOSE_BY_KEY if claims else sql.ADMIT_BY_KEY
    return [(sql.LOCK_KEYS, {"ids": as_array(ids), "keys": sorted(set(keys))}), (admit, {})]


class Limiting(Statements):
    """Used after a key has changed: by enqueues, the time gate and the sweep. A worker admits with its exchange."""

    def admit_keys(self, keys: Collection[str]) -> Admitted:
        """Admit jobs of these keys, as far as permits are free. Notifies nobody.

        In a transaction of the caller the keys stay locked until its end.
        """
        *_, locked, admitted = self._admitted(admission((), keys))
        return Admitted.decode(locked, admitted)

    def admit_lone(self, id: int, key: str) -> Admitted | None:
        """Admit this job, if no other job of its key waits and a permit is free. Notifies nobody.

        Returns `None` if it was not admitted: `admit_keys` admits what can be. Locks the key as that does.
        """
        statements: list[Statement | None] = [
            (lone_sql.LOCK_KEY, {"key": key}),
            (lone_sql.ADMIT_LONE, {"id": id, "key": key}),
        ]
        for queue_name, rate_key in self._admitted(statements)[-1]:
            return Admitted({queue_name: 1} if rate_key is None else {}, [], frozenset({rate_key} - {None}))
        return None

    def _admitted(self, statements: Sequence[Statement | None]) -> list[Rows]:
        """Run statements that admit. Outside of a transaction, their commit does not wait for the disk."""
        connection = self.connection
        connection.ensure_connection()
        raw = connection.connection
        is_alone = raw.autocommit and raw.info.transaction_status == TransactionStatus.IDLE
        first: list[Statement | None] = [(sql.ADMIT_WITHOUT_WAITING, {})] if is_alone else []
        with connection.wrap_database_errors:
            return [fetched(rows) for rows in pipelined(raw, [*first, *statements], None)]

    def blocked_keys(self, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
        """At most `limit` keys with blocked jobs, alphabetically after `after`: whether a permit of each is free."""
        return dict(self.rows(sql.BLOCKED_KEYS, {"after": after, "limit": limit}))

    def limit_queue(self, name: str, concurrency: int | None, *, by: str = "") -> None:
        """Let at most `concurrency` jobs of this queue run at once; `None`: any number. Those that run, run on.

        Raises `InvalidOption` for a value that cannot be used.
        """
        if not is_concurrency(concurrency):
            raise InvalidOption(f"concurrency must be {CONCURRENCY}, or None for any number, not {concurrency!r}.")
        self._set_limit(name, concurrency or 0, by)

    def limit_queue_by_settings(self, name: str, *, by: str = "") -> None:
        self._set_limit(name, None, by)

    def rate_queue(self, name: str, rate: str | None, *, by: str = "") -> None:
        """Set how many jobs of this queue may start in a time, such as "50/s"; `None`: any number.

        Raises `InvalidOption` for a value that cannot be used.
        """
        interval = 0.0 if rate is None else interval_of(rate)
        self._set_rate(name, interval, burst_of(None, interval) if interval else 0, by)

    def rate_queue_by_settings(self, name: str, *, by: str = "") -> None:
        self._set_rate(name, None, None, by)

    def _set_rate(self, name: str, interval: float | None, burst: int | None, by: str) -> None:
        check_columns({"queue_name": name})
        stored_by = noted(by, "")["by"]
        self.execute(queue_sql.RATE_QUEUE, {"name": name, "interval": interval, "burst": burst})
        admit_after_commit(self, {}, [key_of(name)])
        notify_supervisors(self, QUEUES_PAYLOAD)  # for `block_unrated`
        notify_supervisors(self, LIMITS_PAYLOAD)  # for a key that the caller could not lock
        self.send(QueueRated(self.alias, name, interval, stored_by))

    def _set_limit(self, name: str, concurrency: int | None, by: str) -> None:
        check_columns({"queue_name": name})
        stored_by = noted(by, "")["by"]
        self.execute(queue_sql.LIMIT_QUEUE, {"name": name, "concurrency": concurrency})
        admit_after_commit(self, {key_of(name): None})
        notify_supervisors(self, QUEUES_PAYLOAD)  # for `block_surplus`
        notify_supervisors(self, LIMITS_PAYLOAD)  # for more than are admitted at once
        self.send(QueueLimited(self.alias, name, concurrency, stored_by))

    def block_surplus(self, *, limit: int = BATCH) -> int:
        """Have up to `limit` queued jobs beyond the limits of their queues wait again. Returns the number."""
        ((number,),) = self.rows(queue_sql.BLOCK_SURPLUS, {"limit": limit})
        return int(number)


def admit_by_limit(store: Statements, keys: Sequence[str]) -> Admitted:
    """Admit jobs of these keys in batches. Notifies nobody. Those that have a rate wait for that now."""
    counts: Counter[str] = Counter()
    missed: list[str] = []
    rates: set[str] = set()
    limiting = Limiting(store.alias, send=store.send)
    for start in range(0, len(keys), KEYS_AT_ONCE):
        found = limiting.admit_keys(keys[start : start + KEYS_AT_ONCE])
        counts.update(found.counts)
        missed += found.missed
        rates |= found.rates
    return Admitted(counts, missed, frozenset(rates))


def admit_or_announce(store: Statements, keys: Sequence[str]) -> Admitted:
    """Admit jobs of these keys, and try a key that another transaction has locked once more: for a millisecond, mostly.

    The supervisors are notified of those that are still locked then.
    """
    first = admit_by_limit(store, keys)
    if not first.missed:
        return first
    second = admit_by_limit(store, first.missed)
    notify_of_keys(store, LIMIT_PREFIX, second.missed)
    return Admitted(Counter(first.counts) + Counter(second.counts), second.missed, first.rates | second.rates)


def with_rates(store: Statements, admitted: Admitted) -> dict[str, int]:
    """Admit those by their rates that wait for these now. Returns the number of admitted jobs, by queue."""
    return dict(Counter(admitted.counts) + Counter(admit_rates(store, admitted.rates)))


@dataclass
class Admission:
    """Admits jobs of these keys, once the transaction that enqueued them is committed."""

    database: str
    send: Send = send
    keys: dict[str, int | None] = field(default_factory=dict)
    """The keys of limits; each with the id of its job, or `None` if there are several. A job that has a rate as well
    waits for that afterwards."""
    rates: set[str] = field(default_factory=set)
    """The keys of the rates of jobs that have no limit."""
    is_urgent: bool = False
    """Whether one of the jobs may rank before a queued one: a supervisor gives it the permit or the token of that."""

    def __post_init__(self) -> None:
        self.__qualname__ = type(self).__qualname__  # Django's log line about a hook that fails has it

    def __call__(self) -> None:
        """Admit now. What fails here, or stays locked, a supervisor does: it is notified."""
        store = Statements(self.database, send=self.send)
        try:
            found = self._admit_by_limit(store)
            rates = sorted(self.rates | found.rates)
            notify_of_keys(store, RATE_PREFIX, rates[RATES_AFTER_COMMIT:])
            admitted = Counter(found.counts) + Counter(admit_rates(store, rates[:RATES_AFTER_COMMIT]))
            if rates:  # an idle supervisor would look after `SOON` seconds
                wake_supervisors(store, [Rating(store.alias).next_rate() or 0.0])
            if self.is_urgent and not (admitted and self._lone):
                notify_of_keys(store, LIMIT_PREFIX, self.keys)
                notify_of_keys(store, RATE_PREFIX, rates)
        except DatabaseError:
            notify_supervisors(store, LIMITS_PAYLOAD)
            raise  # Django logs it: the caller's rows are committed
        wake(store, admitted)
        if admitted:
            self.send(JobsAdmitted(self.database, dict(admitted)))

    @property
    def _lone(self) -> list[tuple[str, int]]:
        """The key and the id of the job, if there is one job alone."""
        return [(key, id) for key, id in self.keys.items() if id is not None and len(self.keys) == 1]

    def _admit_by_limit(self, store: Statements) -> Admitted:
        for key, id in self._lone:
            if admitted := Limiting(store.alias).admit_lone(id, key):
                return admitted
        return admit_or_announce(store, sorted(self.keys))


def admit_after_commit(
    store: Statements, keys: Mapping[str, int | None], rates: Collection[str] = (), *, is_urgent: bool = False
) -> None:
    """Admit jobs of these keys of limits, and of rates, after the caller's transaction is committed.

    keys: each with the id of its job, or `None` if there are several.
    is_urgent: a job may rank before a queued one of its key.

    Not within it: its locks of the keys would stop all other jobs of these keys until its end.
    """
    connection = connections[store.alias]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        notify_of_keys(store, LIMIT_PREFIX, keys)  # the caller manages the transaction by hand: there is no hook
        notify_of_keys(store, RATE_PREFIX, rates)
        return
    for _, hook, *_ in connection.run_on_commit:
        if isinstance(hook, Admission) and hook.database == store.alias:
            hook.keys.update({key: None if key in hook.keys else id for key, id in keys.items()})
            hook.rates.update(rates)
            hook.is_urgent = hook.is_urgent or is_urgent
            return
    admission = Admission(store.alias, store.send, {**keys}, {*rates}, is_urgent)
    transaction.on_commit(admission, using=store.alias, robust=True)


class LimitGate:
    """Holds a job until a permit of its key is free.

    Mostly, jobs are admitted right after their enqueue, or by the worker that settles a job of their key. A sweep over
    the keys with blocked jobs finds the others: a permit has become free in another way, or a process has died. Those
    that were locked when somebody looked are looked at by name: a sweep over a million keys takes minutes.
    """

    name = "limit"

    def __init__(self) -> None:  # each by database
        self._sweeps: defaultdict[str, Sweep] = defaultdict(Sweep)
        self._wanted: defaultdict[str, Wanted] = defaultdict(Wanted)

    def admit(self, store: Statements, *, limit: int) -> GateResult:
        """Admit jobs of the named keys, and, if a sweep is due, of those with free permits among the next `limit`."""
        sweep, wanted = self._sweeps[store.alias], self._wanted[store.alias]
        admitted = Counter(wanted.run(store) if wanted.is_due() else {})
        if sweep.due_at <= time.monotonic():
            admitted.update(sweep.run(store, limit=limit))
            self.want(store.alias, sweep.missed)
        return GateResult(dict(admitted))

    def next_due(self, store: Statements) -> float | None:
        """The seconds until the next look at named keys, or the next sweep; `None` if no job waits at this gate."""
        wanted, until_sweep = self._wanted[store.alias], self._until_sweep(store)
        if not wanted.keys:
            return until_sweep
        until_wanted = wanted.due_at - time.monotonic()
        return until_wanted if until_sweep is None else min(until_wanted, until_sweep)

    def _until_sweep(self, store: Statements) -> float | None:
        sweep = self._sweeps[store.alias]
        due_in = sweep.due_at - time.monotonic()
        if due_in > 0:
            return due_in if sweep.found_any else None
        return 0.0 if Limiting(store.alias).blocked_keys(limit=1) else None

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Have these keys looked at soon; all keys, if there are too many."""
        if not self._wanted[alias].add(keys):
            self.sweep_now(alias)

    def sweep_now(self, alias: str) -> None:
        """Have the next sweep due soon: at once, if the last one did not take long."""
        self._sweeps[alias].hurry()


class Wanted:
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.due_at = 0.0
        self._rest = MISSED_INTERVAL

    def add(self, keys: Collection[str]) -> bool:
        """Look at these keys soon. Returns `False`, and forgets all keys, if there are too many."""
        if new := set(keys) - self.keys:
            self.keys |= new
            self.due_at = 0.0
        if len(self.keys) > KEYS_AT_ONCE:
            self.keys.clear()
        return bool(self.keys) or not new

    def is_due(self) -> bool:
        return bool(self.keys) and self.due_at <= time.monotonic()

    def run(self, store: Statements) -> Mapping[str, int]:
        """Look at the keys. Those that another transaction has locked stay: their jobs may have been left out."""
        found = admit_by_limit(store, sorted(self.keys))
        self.keys = set(found.missed)
        self._rest = min(2 * self._rest, SWEEP_INTERVAL) if self.keys else MISSED_INTERVAL
        self.due_at = time.monotonic() + self._rest
        return with_rates(store, found)


class Sweep:
    def __init__(self) -> None:
        self.due_at = 0.0
        self._rested_at = 0.0
        """When the next one may come, however many notifications ask for it."""
        self.after = ""
        """The key after which the next one goes on; empty: it begins anew."""
        self.found_any = False
        """Whether the last one has found a key with blocked jobs."""
        self.missed: list[str] = []
        """The keys with free permits that another transaction had locked at the last one."""

    def run(self, store: Statements, *, limit: int) -> Mapping[str, int]:
        started = time.monotonic()
        keys = Limiting(store.alias, send=store.send).blocked_keys(after=self.after, limit=limit)
        found = admit_by_limit(store, [key for key, is_free in keys.items() if is_free])
        admitted, self.missed = with_rates(store, found), found.missed
        self.found_any = bool(keys)
        self.after = list(keys)[-1] if len(keys) == limit else ""
        now = time.monotonic()
        took = now - started
        self._rested_at = now + took * (1 / NOTIFIED_SHARE - 1)
        rest = took * (1 / SWEEP_SHARE - 1)
        self.due_at = now + (rest if self.after else max(rest, SWEEP_INTERVAL))
        return admitted

    def hurry(self) -> None:
        """Be due as soon as allowed, and go on where the last one ended, so that no first keys hide the rest."""
        self.due_at = min(self.due_at, self._rested_at)

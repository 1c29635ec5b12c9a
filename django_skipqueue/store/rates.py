"""The methods that admit jobs by the rates of their keys."""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from ..admission import queue_sql
from ..admission import rate_sql as sql
from ..values.gate_result import GateResult
from .notify import RATE_PREFIX, notify_of_keys
from .parameters import Statement, fetched, pipelined
from .statements import BATCH, Statements

KEYS_AT_ONCE = 1_000
"""Keys that are admitted in one transaction, at most."""

LEAST_INTERVAL = 0.02
"""Seconds between two admissions of one process, at least: more frequent ones would admit no more jobs."""

VAIN_INTERVAL = 0.1
"""The same after one that has admitted nothing: another supervisor was faster, and will mostly be again."""

SWEEP_INTERVAL = 1.0
"""Seconds between two sweeps over the keys with blocked jobs, at least. It finds the keys of which nobody knows when
they are due: a process has died before it admitted, or the clock was set back."""

SWEEP_SHARE = 1 / 20
"""The share of the time that the sweeps of one process take, at most."""


class Rating(Statements):
    """Used after a job has come to the gate of rates, and by supervisors when a key is due."""

    def admit_rates(self, keys: Collection[str]) -> tuple[dict[str, int], list[str]]:
        """Admit jobs of these keys, as far as there are tokens. Notifies nobody.

        Returns the number of jobs, by queue, and the keys that another transaction has locked. In a transaction of the
        caller the keys stay locked until its end.
        """
        connection = self.connection
        connection.ensure_connection()
        statements: list[Statement | None] = [
            (sql.LOCK_RATES, {"keys": sorted(set(keys))}),
            (sql.ADMIT_BY_RATE, {}),
        ]
        with connection.wrap_database_errors:
            locked, admitted = pipelined(connection.connection, statements, None)
            return dict(fetched(admitted)), [key for missed, _ in fetched(locked) for key in missed or ()]

    def due_rates(self, *, limit: int = KEYS_AT_ONCE) -> list[str]:
        return [key for (key,) in self.rows(sql.DUE_RATES, {"limit": limit})]

    def next_rate(self) -> float | None:
        """The seconds until a key is due, below 0 if one is overdue; `None` if none is known to wait."""
        return next((seconds for (seconds,) in self.rows(sql.NEXT_RATE)), None)

    def blocked_rates(self, *, after: str = "", limit: int = KEYS_AT_ONCE) -> dict[str, bool]:
        """At most `limit` keys with blocked jobs, alphabetically after `after`: whether each needs a look."""
        return dict(self.rows(sql.BLOCKED_RATES, {"after": after, "limit": limit}))

    def block_unrated(self, *, limit: int = BATCH) -> int:
        """Have up to `limit` queued jobs beyond the bursts of their queues wait again. Returns the number."""
        blocked = dict(self.rows(queue_sql.BLOCK_UNRATED, {"limit": limit}))
        notify_of_keys(self, RATE_PREFIX, blocked)
        return sum(blocked.values())

    def prune_rates(self, *, limit: int = KEYS_AT_ONCE) -> int:
        """Delete buckets that are full. Returns their number."""
        [(number,)] = self.rows(sql.PRUNE_RATES, {"limit": limit})
        return int(number)


def admit_rates(store: Statements, keys: Iterable[str]) -> dict[str, int]:
    """Admit jobs of these keys in batches. Returns their number, by queue. Notifies nobody of these jobs.

    The supervisors are notified of keys that another transaction has locked, to look again.
    """
    admitted: Counter[str] = Counter()
    ordered, missed = sorted(set(keys)), []
    rating = Rating(store.alias, send=store.send)
    for start in range(0, len(ordered), KEYS_AT_ONCE):
        counts, locked = rating.admit_rates(ordered[start : start + KEYS_AT_ONCE])
        admitted.update(counts)
        missed += locked
    notify_of_keys(store, RATE_PREFIX, missed)
    return dict(admitted)


class Pace:
    def __init__(self) -> None:
        self.wanted: set[str] = set()
        """Keys to look at, whether they are due or not."""
        self.not_before = 0.0
        """The next admission is not earlier."""
        self.sweep_at = 0.0
        self._rested_at = 0.0
        """When the next sweep may come, however many notifications ask for it."""
        self.swept = ""
        """The key after which the next sweep goes on; empty: it begins anew."""
        self.found_any = False
        """Whether the last sweep has found a key with blocked jobs."""

    def keys(self, rating: Rating, *, limit: int) -> list[str]:
        found = {*sorted(self.wanted)[:limit], *rating.due_rates(limit=limit)}
        if self.sweep_at <= time.monotonic():
            found |= self._sweep(rating, limit=limit)
        return sorted(found)

    def admitted(self, keys: Collection[str], missed: Collection[str], *, is_vain: bool) -> None:
        self.wanted = (self.wanted - set(keys)) | set(missed)
        self.not_before = time.monotonic() + (VAIN_INTERVAL if is_vain else LEAST_INTERVAL)

    def want(self, keys: Collection[str]) -> None:
        """Look at these keys soon; at all keys, if there are too many."""
        self.wanted |= set(keys)
        if len(self.wanted) > KEYS_AT_ONCE:
            self.wanted.clear()
            self.sweep_soon()

    def sweep_soon(self) -> None:
        """Look at all keys as soon as allowed. Goes on where the last sweep ended, so no first keys hide the rest."""
        self.sweep_at, self.found_any = min(self.sweep_at, self._rested_at), True

    def _sweep(self, rating: Rating, *, limit: int) -> set[str]:
        started = time.monotonic()
        keys = rating.blocked_rates(after=self.swept, limit=limit)
        self.found_any = bool(keys)
        self.swept = list(keys)[-1] if len(keys) == limit else ""
        now = time.monotonic()
        self._rested_at = now + (now - started) * (1 / SWEEP_SHARE - 1)
        self.sweep_at = self._rested_at if self.swept else max(self._rested_at, now + SWEEP_INTERVAL)
        return {key for key, needs_look in keys.items() if needs_look}


def sweep_rates(store: Statements, *, limit: int = KEYS_AT_ONCE) -> dict[str, int]:
    """Admit jobs of all keys that have tokens. Returns their number, by queue. For a drain that may be over."""
    pace, rating = Pace(), Rating(store.alias, send=store.send)
    admitted: Counter[str] = Counter()
    while True:
        pace.sweep_at = 0.0
        admitted.update(rating.admit_rates(pace.keys(rating, limit=limit))[0])
        if not pace.swept:
            return dict(admitted)


class RateGate:
    """Holds a job until there is a token of its key.

    Mostly, a job is admitted right after its enqueue, or when its key is due: the row of the key says when. A sweep
    over the keys with blocked jobs finds the others.
    """

    name = "rate"

    def __init__(self) -> None:
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)  # by database

    def admit(self, store: Statements, *, limit: int) -> GateResult:
        pace = self._paces[store.alias]
        if pace.not_before > time.monotonic():
            return GateResult({})
        rating = Rating(store.alias, send=store.send)
        keys = pace.keys(rating, limit=min(limit, KEYS_AT_ONCE))
        if not keys:
            return GateResult({})
        counts, missed = rating.admit_rates(keys)
        pace.admitted(keys, missed, is_vain=not counts)
        return GateResult(counts)

    def next_due(self, store: Statements) -> float | None:
        """The seconds until a key is to be looked at; `None` if no job waits at this gate."""
        pace, now = self._paces[store.alias], time.monotonic()
        rating = Rating(store.alias, send=store.send)
        dues = [due for due in (self._until_sweep(pace, rating, now), rating.next_rate()) if due is not None]
        if pace.wanted:
            dues.append(0.0)
        return max(min(dues), pace.not_before - now) if dues else None

    def want(self, alias: str, keys: Collection[str]) -> None:
        self._paces[alias].want(keys)

    def sweep_now(self, alias: str) -> None:
        """Have the next sweep due soon: at once, if the last one did not take long."""
        self._paces[alias].sweep_soon()

    def _until_sweep(self, pace: Pace, rating: Rating, now: float) -> float | None:
        due_in = pace.sweep_at - now
        if due_in > 0:
            return due_in if pace.found_any else None
        return 0.0 if rating.blocked_rates(limit=1) else None

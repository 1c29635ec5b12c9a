"""What the gates of limits and of rates share: keys to look at by name, and sweeps over the keys with blocked jobs.

A sweep finds the jobs that nobody has admitted: a process has died before it admitted, a permit has become free in
another way, or the clock was set back.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ...queue.store import Store

T = TypeVar("T")

KEYS_AT_ONCE = 1_000
"""Keys that are admitted in one transaction, at most."""

SWEEP_INTERVAL = 1.0
"""Seconds between two sweeps, at least. Mostly, jobs are admitted without a sweep: by the worker that settles a job of
their key, right after their enqueue, or when the bucket of their key has a token."""

SWEEP_SHARE = 1 / 20
"""The share of the time that the sweeps of one process take, at most."""


class Blocked(Protocol):
    """Reads at most `limit` keys with blocked jobs, alphabetically after `after`: whether each needs a look."""

    def __call__(self, store: "Store", /, *, after: str = "", limit: int) -> Mapping[str, bool]: ...


class Sweep:
    def __init__(self, blocked: Blocked, *, notified_share: float | None = None) -> None:
        """`notified_share`: as `SWEEP_SHARE`, while notifications ask for sweeps that do not name the keys."""
        self._blocked = blocked
        self._notified_share = notified_share or SWEEP_SHARE
        self.due_at = 0.0
        self._rested_at = 0.0
        """When the next one may come, however many notifications ask for it."""
        self.after = ""
        """The key after which the next sweep goes on; empty: the next sweep starts with the first key."""
        self.found_any = False
        """Whether the last one has found a key with blocked jobs."""

    def run(self, store: "Store", look: Callable[["Store", list[str]], T], *, limit: int) -> T:
        """Look at those of the next keys that need it. The time that this takes counts as that of the sweep."""
        started = time.monotonic()
        keys = self._blocked(store, after=self.after, limit=limit)
        found = look(store, [key for key, needs_look in keys.items() if needs_look])
        self.found_any = bool(keys)
        self.after = list(keys)[-1] if len(keys) == limit else ""
        now = time.monotonic()
        took = now - started
        self._rested_at = now + took * (1 / self._notified_share - 1)
        rest = took * (1 / SWEEP_SHARE - 1)
        self.due_at = now + (rest if self.after else max(rest, SWEEP_INTERVAL))
        return found

    def hurry(self) -> None:
        """Be due as soon as allowed, and go on where the last one ended, so that no first keys hide the rest."""
        self.due_at, self.found_any = min(self.due_at, self._rested_at), True

    def next_due(self, store: "Store") -> float | None:
        """The seconds until the next one; `None` if no job waits."""
        due_in = self.due_at - time.monotonic()
        if due_in > 0:
            return due_in if self.found_any else None
        return 0.0 if self._blocked(store, limit=1) else None


class KeyedGate:
    """What one process knows of the keys, by database."""

    name: str
    enqueue_alone: str | None = None

    @property
    def prefix(self) -> str:
        return f",{self.name} "

    def __init__(self, sweep: Callable[[], Sweep]) -> None:
        self._sweeps: defaultdict[str, Sweep] = defaultdict(sweep)
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        """Keys to look at by name: a sweep over a million keys takes minutes."""

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Have these keys looked at soon; all keys, if there are too many."""
        wanted = self._wanted[alias]
        wanted.update(keys)
        if len(wanted) > KEYS_AT_ONCE:
            wanted.clear()
            self.sweep_now(alias)

    def sweep_now(self, alias: str) -> None:
        """Have the next sweep due soon: at once, if the last one did not take long."""
        self._sweeps[alias].hurry()

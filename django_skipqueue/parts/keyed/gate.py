"""What the gates of limits and of rates share: keys to check by name, and sweeps over the keys with blocked jobs.

A sweep finds the jobs that can be admitted and that nobody has admitted: a process has died before it admitted, an
operator has made a permit free, or the clock was set back.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from ...queue.parameters import Admitted
from ...queue.store import Store

T = TypeVar("T")

KEYS_AT_ONCE = 1_000
"""The maximum of keys whose jobs one transaction admits, or that one scan of the keys reads."""

SWEEP_INTERVAL = 1.0
"""The shortest time in seconds between two sweeps. Most jobs are admitted without a sweep: by the worker that settles a
job of their key, right after their enqueue, or when the bucket of their key has a token."""

SWEEP_SHARE = 1 / 20
"""The largest share of its time that a process spends on sweeps."""


def admit_in_batches(store: Store, keys: Sequence[str], admit: Callable[[Store, Sequence[str]], Admitted]) -> Admitted:
    """Call `admit` with batches of these keys, and return the sums of its results."""
    counts: Counter[str] = Counter()
    missed: list[str] = []
    later: set[str] = set()
    for start in range(0, len(keys), KEYS_AT_ONCE):
        found = admit(store, keys[start : start + KEYS_AT_ONCE])
        counts.update(found.counts)
        missed += found.missed
        later |= found.later
    return Admitted(counts, missed, frozenset(later))


class BlockedKeys(Protocol):
    """Reads at most `limit` keys with blocked jobs, alphabetically after `after`: whether each needs a check."""

    def __call__(self, store: Store, /, *, after: str = "", limit: int) -> Mapping[str, bool]: ...


class Sweep:
    def __init__(self, blocked: BlockedKeys, *, notified_share: float | None = None) -> None:
        """`notified_share`: takes the place of `SWEEP_SHARE` while notifications without keys ask for sweeps."""
        self._blocked = blocked
        self._notified_share = notified_share or SWEEP_SHARE
        self.due_at = 0.0
        self._rested_at = 0.0
        """The earliest time of the next sweep, even if notifications ask for one."""
        self.after = ""
        """The key after which the next sweep goes on; empty: the next sweep starts with the first key."""
        self.found_any = False
        """Whether the last sweep has found a key with blocked jobs."""

    def run(self, store: Store, check: Callable[[Store, list[str]], T], *, limit: int) -> T:
        """Call `check` with the next keys that need a check. Its time counts as time of the sweep."""
        started = time.monotonic()
        keys = self._blocked(store, after=self.after, limit=limit)
        found = check(store, [key for key, needs_look in keys.items() if needs_look])
        self.found_any = bool(keys)
        self.after = list(keys)[-1] if len(keys) == limit else ""
        now = time.monotonic()
        took = now - started
        self._rested_at = now + took * (1 / self._notified_share - 1)
        rest = took * (1 / SWEEP_SHARE - 1)
        self.due_at = now + (rest if self.after else max(rest, SWEEP_INTERVAL))
        return found

    def hurry(self) -> None:
        """Have the next sweep due as soon as allowed. It goes on after the last key, so that every key has its turn."""
        self.due_at, self.found_any = min(self.due_at, self._rested_at), True

    def next_due(self, store: Store) -> float | None:
        """The seconds until the next sweep; `None` if no job waits."""
        due_in = self.due_at - time.monotonic()
        if due_in > 0:
            return due_in if self.found_any else None
        return 0.0 if self._blocked(store, limit=1) else None


class KeyedGate:
    """The base class of both gates: what one process knows of the keys, by database."""

    name: str
    enqueue_alone: str | None = None

    def __init__(self, new_sweep: Callable[[], Sweep]) -> None:
        self._new_sweep = new_sweep
        self._sweeps: defaultdict[str, Sweep] = defaultdict(new_sweep)
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        """Keys to check by name: a sweep over a million keys takes minutes."""

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Have the next `admit` check these keys, or all keys if there are too many."""
        wanted = self._wanted[alias]
        wanted.update(keys)
        if len(wanted) > KEYS_AT_ONCE:
            wanted.clear()
            self.sweep_now(alias)

    def sweep_now(self, alias: str) -> None:
        """Have the next sweep due soon: at once, if the last sweep did not take long."""
        self._sweeps[alias].hurry()

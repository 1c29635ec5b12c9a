"""The base class of the gates of limits and rates, which check keys on request and sweep over all keys regularly.

A sweep finds jobs that could be admitted but are still blocked: a process died before it admitted them, an operator
freed a permit, or the clock was set back.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from ...queue.parameters import Admitted
from ...queue.store import Store

T = TypeVar("T")

KEYS_AT_ONCE = 1_000
"""The maximum number of keys that one transaction admits jobs of, or that one scan of the keys reads."""

SWEEP_INTERVAL = 1.0
"""The shortest time in seconds between two sweeps. Most jobs need no sweep: they are admitted right after their
enqueue, by the worker that settles a job of their key, or when their key gets a token."""

SWEEP_SHARE = 1 / 20
"""The largest share of its time that a process spends on sweeps."""


def admit_in_batches(store: Store, keys: Sequence[str], admit: Callable[[Store, Sequence[str]], Admitted]) -> Admitted:
    """Call `admit` with batches of these keys, and add up its results."""
    counts: Counter[str] = Counter()
    missed: list[str] = []
    later: set[str] = set()
    for start in range(0, len(keys), KEYS_AT_ONCE):
        admitted = admit(store, keys[start : start + KEYS_AT_ONCE])
        counts.update(admitted.counts)
        missed += admitted.missed
        later |= admitted.later
    return Admitted(counts, missed, frozenset(later))


class BlockedKeys(Protocol):
    """Reads the next `limit` keys with blocked jobs, in alphabetical order, and whether each key needs a check."""

    def __call__(self, store: Store, /, *, after: str = "", limit: int) -> Mapping[str, bool]: ...


class Sweep:
    def __init__(self, blocked: BlockedKeys, *, notified_share: float | None = None) -> None:
        """`notified_share`: used instead of `SWEEP_SHARE` while notifications without keys ask for sweeps."""
        self._blocked = blocked
        self._notified_share = notified_share or SWEEP_SHARE
        self.due_at = 0.0
        self._rested_at = 0.0
        """The earliest time of the next sweep if a notification asks for one."""
        self.after = ""
        """The next sweep continues after this key; empty: it starts with the first key."""
        self.found_any = False
        """Whether the last sweep has found a key with blocked jobs."""

    def run(self, store: Store, check: Callable[[Store, list[str]], T], *, limit: int) -> T:
        """Call `check` with the next keys that need a check. The time of the call counts as time of the sweep."""
        started = time.monotonic()
        keys = self._blocked(store, after=self.after, limit=limit)
        result = check(store, [key for key, needs_check in keys.items() if needs_check])
        self.found_any = bool(keys)
        self.after = list(keys)[-1] if len(keys) == limit else ""
        now = time.monotonic()
        duration = now - started
        self._rested_at = now + duration * (1 / self._notified_share - 1)
        rest = duration * (1 / SWEEP_SHARE - 1)  # then sweeps take at most this share of the time
        self.due_at = now + (rest if self.after else max(rest, SWEEP_INTERVAL))
        return result

    def hurry(self) -> None:
        """Make the next sweep due as soon as allowed. It continues after the last key, so that no key is left out."""
        self.due_at, self.found_any = min(self.due_at, self._rested_at), True

    def next_due(self, store: Store) -> float | None:
        """Return the seconds until the next sweep; `None` if no job waits."""
        due_in = self.due_at - time.monotonic()
        if due_in > 0:
            return due_in if self.found_any else None
        return 0.0 if self._blocked(store, limit=1) else None


class KeyedGate:
    """The base class of the gates of limits and rates. It keeps what one process knows about keys, by database."""

    name: str
    enqueue_alone: str | None = None

    def __init__(self, new_sweep: Callable[[], Sweep]) -> None:
        self._new_sweep = new_sweep
        self._sweeps: defaultdict[str, Sweep] = defaultdict(new_sweep)
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        """For each database alias: keys to check next, without a sweep; a sweep over a million keys takes minutes."""

    def want(self, alias: str, keys: Collection[str]) -> None:
        """Make the next `admit` check these keys, or all keys if there are too many."""
        wanted = self._wanted[alias]
        wanted.update(keys)
        if len(wanted) > KEYS_AT_ONCE:
            wanted.clear()
            self.sweep_now(alias)

    def sweep_now(self, alias: str) -> None:
        """Make the next sweep due soon; immediately if the last sweep did not take long."""
        self._sweeps[alias].hurry()

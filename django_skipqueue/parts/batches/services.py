"""Finishes batches, and deletes those that were finished long ago.

Invariant: a batch is finished soon after its last job, however that job was finished: by a worker that died right
after the settle, by an operator, by a recovery, or by its deletion. One that cannot be finished stops no other, and is
tried again after a delay that grows.
"""

import time
from collections.abc import Collection

from ...queue.store import Store
from ...worker.loop import Periodic
from .finish import Looked, finish_open_batches, prune_batches

FINISH_SECONDS = 1.0
"""Seconds between two looks at open batches. Workers finish most of them at once."""

LOOK_SECONDS = 0.1
"""The time after which a run looks at no further open batches: a tenth of the supervisor's time."""

FIRST_DELAY, LONGEST_DELAY = 2.0, 60.0
"""Seconds until a batch is tried again whose callbacks could not be enqueued, doubled up to the second each time."""

PRUNE_SECONDS = 60.0
"""Seconds between two looks at finished batches."""


class FinishBatches(Periodic):
    """Finishes the open batches whose jobs are finished: each time as many as it has time for, in the order of ids."""

    name = "finish_batches"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = 0
        self._failed: dict[int, tuple[float, float]] = {}
        """The delay of each batch that could not be finished, and the time of its next try."""

    def run(self, now: float) -> None:
        """Look at the next open batches. Batches that are left over are next, after a pause if others cost time."""
        until = time.monotonic() + LOOK_SECONDS
        looked = self._look(now)
        while self._after and not (looked.left or looked.failed) and time.monotonic() < until:
            looked = self._look(now)
        self.run_again_in(0.0 if looked.left and not looked.failed else FINISH_SECONDS)

    def _look(self, now: float) -> Looked:
        after, self._after = self._after, 0  # from the front again if the statement fails
        waiting = [id for id, (_, until) in self._failed.items() if until > now]
        last, looked = finish_open_batches(self._store, after=after, skipped=waiting)
        self._after = last or 0
        self._put_off(looked.failed)
        return looked

    def _put_off(self, failed: Collection[int]) -> None:
        """Leave these batches alone for a while, and forget those whose last try was long ago."""
        now = time.monotonic()
        self._failed = {id: entry for id, entry in self._failed.items() if entry[1] > now - LONGEST_DELAY}
        for id in failed:
            last_delay, _ = self._failed.get(id, (0.0, 0.0))
            delay = min(max(FIRST_DELAY, last_delay * 2), LONGEST_DELAY)
            self._failed[id] = delay, now + delay


class PruneBatches(Periodic):
    name = "prune_batches"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if prune_batches(self._store) else PRUNE_SECONDS)

"""Finishes batches, and deletes those that were finished long ago.

Invariant: a batch is finished soon after its last job, however that job was finished: by a worker that died right
after the settle, by an operator, by a recovery, or by its deletion.
"""

from ..runtime.service import Periodic
from ..store import Store

FINISH_SECONDS = 1.0
"""Seconds between two looks at open batches. Workers finish most of them at once."""

PRUNE_SECONDS = 60.0
"""Seconds between two looks at finished batches."""


class FinishBatches(Periodic):
    """Finishes the open batches whose jobs are finished: each time some of them, in the order of their ids."""

    name = "finish_batches"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = 0

    def run(self, now: float) -> None:
        """Look at the next open batches."""
        after, self._after = self._after, 0  # from the front again if the statement fails
        self._after = self._store.finish_open_batches(after=after) or 0
        self.run_again_in(FINISH_SECONDS)


class PruneBatches(Periodic):
    """Deletes finished batches past the retention of their jobs."""

    name = "prune_batches"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        """Delete some of them."""
        self.run_again_in(0.0 if self._store.prune_batches() else PRUNE_SECONDS)

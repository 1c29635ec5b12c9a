"""Deletes the rows of workers that died with their machine."""

from ..runtime.service import Periodic
from ..store import Store
from .dead_workers import DeadWorkers

PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two batches."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""


class PruneWorkers(Periodic):
    """Deletes the rows of workers that died with their machine, once they hold no job any more."""

    name = "prune_workers"

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float) -> None:
        self._store = store
        self._dead = dead
        self._age = max(KEEP_DEAD_WORKERS, timeout)

    def run(self, now: float) -> None:
        if self._dead.ids:
            self._store.prune_workers(self._dead.ids, age=self._age)
        self.run_again_in(PRUNE_WORKERS_SECONDS)

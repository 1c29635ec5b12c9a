"""Removes the rows of workers that died with their machine."""

from ..store import Store
from .dead_workers import DeadWorkers
from .service import Service

PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two looks for the rows of workers that died with their machine."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""


class PruneWorkers(Service):
    """Removes the rows of workers that died with their machine, once nothing of theirs is left to recover."""

    name = "prune_workers"

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float) -> None:
        super().__init__(store)
        self._dead = dead
        self._age = max(KEEP_DEAD_WORKERS, timeout)

    def run(self) -> float:
        """See `Service.run`."""
        if self._dead.ids:
            self.store.prune_workers(self._dead.ids, age=self._age)
        return PRUNE_WORKERS_SECONDS

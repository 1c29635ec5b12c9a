"""Takes back the jobs of workers that are gone, and removes the rows of these workers."""

import time
from collections.abc import Callable

from ..store import Store
from ..store.statements import BATCH
from ..values.records import RecoveredJob
from .dead_workers import DeadWorkers
from .service import Service

LONGEST_INTERVAL = 5.0
"""Seconds between two looks at the heartbeats; with a short worker timeout a quarter of it."""

RECOVERED_INTERVAL = 15.0
"""Seconds between two looks for jobs of a dead worker from which nothing could be taken: what is left is locked."""

PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two looks for the rows of workers that died with their machine."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""


class Recover(Service):
    """Takes back the jobs of dead workers, and old ones whose `locked_by` names no row of a worker."""

    name = "recover"

    def __init__(
        self,
        store: Store,
        *,
        dead: DeadWorkers,
        timeout: float,
        tell: Callable[[list[RecoveredJob]], None],
        heartbeat: Service,
    ) -> None:
        """`heartbeat` is this supervisor's own: where that is refused, others may be silent for the same reason."""
        super().__init__(store)
        self.comes_after = heartbeat
        self._dead = dead
        self._heartbeat = heartbeat
        self._interval = min(timeout / 4, LONGEST_INTERVAL)
        self._tell = tell
        self._look_at: dict[str, float] = {}  # when to look again for the jobs of a worker, as others had them locked

    def run(self) -> float:
        """See `Service.run`."""
        if self._heartbeat.is_refused:
            self._dead.look_away()
            return self._interval
        self._dead.look()
        if self._take_back():
            return 0.0
        return min(self._interval, max(0.0, self._dead.next_death - time.monotonic()))

    def _take_back(self) -> bool:
        """One batch; whether there may be more."""
        now = time.monotonic()
        self._look_at = {id: at for id, at in self._look_at.items() if id in self._dead.ids}
        due = [id for id in self._dead.ids if self._look_at.get(id, 0.0) <= now]
        recovered = self.store.recover(worker_ids=due) if due else []
        if len(recovered) < BATCH:
            self._look_at.update(dict.fromkeys(due, now + RECOVERED_INTERVAL))
            if self._dead.silent_since is not None:
                recovered += self.store.recover_without_worker(locked_before=self._dead.silent_since)
        self._tell(recovered)
        return len(recovered) >= BATCH


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

"""Recovers the jobs of dead workers."""

import time

from ..runtime.service import Periodic
from ..store import Store
from ..store.statements import BATCH
from .dead_workers import DeadWorkers

LONGEST_INTERVAL = 5.0
"""Seconds between two checks of the heartbeats, at most: a quarter of the worker timeout, if that is less."""

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until the next try for a dead worker, after a batch that was not full: other rows may be locked."""


class Recover(Periodic):
    """Recovers the jobs of dead workers, and old running jobs whose `locked_by` matches no row of a worker."""

    name = "recover"

    needs_fresh_heartbeat = True

    def __init__(
        self,
        store: Store,
        *,
        dead: DeadWorkers,
        timeout: float,
        heartbeat: Periodic,
    ) -> None:
        """`heartbeat` is this supervisor's own: if it fails, the heartbeats of others may fail for the same reason."""
        self._store = store
        self._dead = dead
        self._heartbeat = heartbeat
        self._interval = min(timeout / 4, LONGEST_INTERVAL)
        self._retry_at: dict[str, float] = {}  # when to try a worker again, by its id

    def run(self, now: float) -> None:
        if self._heartbeat.has_failed:
            self._dead.restart_observation()
            self.run_again_in(self._interval)
            return
        self._dead.look()
        if self._recover_batch():
            self.run_again_in(0.0)
        else:
            self.run_again_in(self._interval)
            self.due_at = min(self.due_at, self._dead.next_death)

    def _recover_batch(self) -> bool:
        now = time.monotonic()
        self._retry_at = {id: at for id, at in self._retry_at.items() if id in self._dead.ids}
        due = [id for id in self._dead.ids if self._retry_at.get(id, 0.0) <= now]
        recovered = self._store.recover(worker_ids=due) if due else []
        if len(recovered) < BATCH:
            self._retry_at.update(dict.fromkeys(due, now + LOOK_AGAIN_SECONDS))
            if self._dead.locked_before is not None:
                recovered += self._store.recover_without_worker(locked_before=self._dead.locked_before)
        return len(recovered) >= BATCH

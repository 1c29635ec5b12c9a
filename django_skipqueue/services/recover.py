"""Takes back the jobs of workers that are gone."""

import time

from ..runtime.service import Periodic
from ..store import Store
from ..store.statements import BATCH
from .dead_workers import DeadWorkers

LONGEST_INTERVAL = 5.0
"""Seconds between two looks at the heartbeats; with a short worker timeout a quarter of it."""

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until the jobs of a dead worker are looked for again, after a batch that was not full: some may be locked."""


class Recover(Periodic):
    """Takes back the jobs of dead workers, and old ones whose `locked_by` names no row of a worker."""

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
        """`heartbeat` is this supervisor's own: where that is refused, others may be silent for the same reason."""
        self._store = store
        self._dead = dead
        self._heartbeat = heartbeat
        self._interval = min(timeout / 4, LONGEST_INTERVAL)
        self._look_at: dict[str, float] = {}  # when to look again for the jobs of a worker, as others had them locked

    def run(self, now: float) -> None:
        """Find out who is dead, and take back one batch."""
        if self._heartbeat.is_refused:
            self._dead.restart_observation()
            self.run_again_in(self._interval)
            return
        self._dead.look()
        if self._take_back():
            self.run_again_in(0.0)
        else:
            self.run_again_in(self._interval)
            self.due_at = min(self.due_at, self._dead.next_death)

    def _take_back(self) -> bool:
        """One batch; whether there may be more."""
        now = time.monotonic()
        self._look_at = {id: at for id, at in self._look_at.items() if id in self._dead.ids}
        due = [id for id in self._dead.ids if self._look_at.get(id, 0.0) <= now]
        recovered = self._store.recover(worker_ids=due) if due else []
        if len(recovered) < BATCH:
            self._look_at.update(dict.fromkeys(due, now + LOOK_AGAIN_SECONDS))
            if self._dead.locked_before is not None:
                recovered += self._store.recover_without_worker(locked_before=self._dead.locked_before)
        return len(recovered) >= BATCH

"""Recovers the jobs of dead workers."""

import time
from collections.abc import Sequence

from ..runtime.service import Periodic
from ..store import Store
from ..store.statements import BATCH
from ..values.records import RecoveredJob
from .dead_sessions import DeadSessions
from .dead_workers import DeadWorkers

LONGEST_INTERVAL = 5.0
"""Seconds between two checks of the heartbeats, at most: a quarter of the worker timeout, if that is less."""

LOCKED_SECONDS = 1.0
"""Seconds until the next try for a dead worker whose jobs another transaction has locked."""

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until the next try for a dead worker that holds no job: a last claim of its may be committed late."""


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
        self._sessions = DeadSessions(store)
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
            self.due_at = min(self.due_at, self._dead.next_death, *self._retry_at.values())

    def _recover_batch(self) -> bool:
        now = time.monotonic()
        self._retry_at = {id: at for id, at in self._retry_at.items() if id in self._dead.ids}
        due = [id for id in self._dead.ids if self._retry_at.get(id, 0.0) <= now]
        recovered = self._take_back(due) if due else []
        if len(recovered) < BATCH:
            locked = self._store.still_holding(due) if due else ()
            self._retry_at |= {id: now + (LOCKED_SECONDS if id in locked else LOOK_AGAIN_SECONDS) for id in due}
            if self._dead.locked_before is not None:
                recovered += self._store.recover_without_worker(locked_before=self._dead.locked_before)
        return len(recovered) >= BATCH

    def _take_back(self, worker_ids: Sequence[str]) -> list[RecoveredJob]:
        self._sessions.end(worker_ids)
        return self._store.recover(worker_ids=worker_ids)

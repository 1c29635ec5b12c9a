"""Takes back the jobs of workers that are gone."""

import time
from collections.abc import Callable

from ..store import Store
from ..store.statements import BATCH
from ..values.records import RecoveredJob
from .dead_workers import DeadWorkers
from .service import Service

LONGEST_INTERVAL = 5.0
"""Seconds between two looks at the heartbeats; with a short worker timeout a quarter of it."""

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until the jobs of a dead worker are looked for again, after a batch that was not full: some may be locked."""


class Recover(Service):
    """Takes back the jobs of dead workers, and old ones whose `locked_by` names no row of a worker."""

    name = "recover"

    def __init__(
        self,
        store: Store,
        *,
        dead: DeadWorkers,
        timeout: float,
        report: Callable[[list[RecoveredJob]], None],
        heartbeat: Service,
    ) -> None:
        """`heartbeat` is this supervisor's own: where that is refused, others may be silent for the same reason."""
        super().__init__(store)
        self.makes_due = heartbeat
        self._dead = dead
        self._heartbeat = heartbeat
        self._interval = min(timeout / 4, LONGEST_INTERVAL)
        self._report = report
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
            self._look_at.update(dict.fromkeys(due, now + LOOK_AGAIN_SECONDS))
            if self._dead.silent_since is not None:
                recovered += self.store.recover_without_worker(locked_before=self._dead.silent_since)
        self._report(recovered)
        return len(recovered) >= BATCH

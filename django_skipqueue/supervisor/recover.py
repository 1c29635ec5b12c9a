"""Recovers the jobs of dead workers, and recovers or releases those of the supervisor's own processes that have ended.

Invariant: running jobs are recovered, and one attempt is charged. Jobs of its own processes that had not started are
released, and no attempt is charged. The row of such a process is deleted when no job of it is left.
"""

import time
from collections.abc import Sequence

from django.db import Error

from ..events import liveness_logs
from ..queue.parameters import BATCH_ROWS
from ..queue.store import Store
from ..values.records import NEVER, RecoveredJob
from ..worker.loop import Periodic, Service
from .liveness import DeadSessions, DeadWorkers
from .processes import LOCKED_INTERVAL, DeadProcess, WorkerProcess

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

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float, heartbeat: Periodic) -> None:
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
        recovered: list[RecoveredJob] = []
        if due:
            self._sessions.end(due)
            recovered = self._store.recover(worker_ids=due)
        if len(recovered) < BATCH_ROWS:
            locked = self._store.still_holding(due) if due else ()
            self._retry_at |= {id: now + (LOCKED_SECONDS if id in locked else LOOK_AGAIN_SECONDS) for id in due}
            if self._dead.locked_before is not None:
                recovered += self._store.recover_without_worker(locked_before=self._dead.locked_before)
        return len(recovered) >= BATCH_ROWS


LONGEST_RUN = 0.2
"""Seconds after which no further process is handled in one run."""

REFUSED_INTERVAL = 10.0
"""Seconds until the next try for a dead process after an error of the database."""


class RecoverOwn(Service):
    """Handles the dead processes that hold jobs one by one, so that an error about one does not delay the others."""

    name = "recover_own"

    def __init__(self, store: Store, processes: Sequence[WorkerProcess]) -> None:
        self._store = store
        self._sessions = DeadSessions(store)
        self._processes = processes
        self._handled: list[DeadProcess] = []

    @property
    def due_at(self) -> float:
        return min((dead.look_at for _, dead in self._waiting()), default=NEVER)

    def run(self, now: float) -> None:
        """Delete the rows of all that ended well and hold no job. Then recover or release jobs of the others."""
        self._forget_idle([pair for pair in self._waiting() if pair[1].ended_well and pair[1].look_at <= now])
        while due := [pair for pair in self._waiting() if pair[1].look_at <= now]:
            self._take_back(*min(due, key=lambda pair: (pair[1].ended_well, pair[1].look_at)), now)
            if time.monotonic() > now + LONGEST_RUN:
                break

    def refused(self, error: Error) -> None:
        """Put the next try for these processes off. The others are not delayed."""
        for dead in self._handled:
            dead.look_at = time.monotonic() + REFUSED_INTERVAL
        liveness_logs.service_failed(self.name, error, REFUSED_INTERVAL)

    def _waiting(self) -> list[tuple[WorkerProcess, DeadProcess]]:
        return [(process, dead) for process in self._processes for dead in process.awaiting_recovery]

    def _forget_idle(self, ended: list[tuple[WorkerProcess, DeadProcess]]) -> None:
        self._handled = [dead for _, dead in ended]
        if ended:
            holding = self._store.still_holding([dead.id for dead in self._handled])
            self._store.delete_workers([dead.id for dead in self._handled if dead.id not in holding])
            for process, dead in ended:
                if dead.id not in holding:
                    process.awaiting_recovery.remove(dead)

    def _take_back(self, process: WorkerProcess, dead: DeadProcess, now: float) -> None:
        """Recover or release one batch of its jobs. If it has no jobs left, delete its row."""
        self._handled = [dead]
        self._sessions.end([dead.id])
        reason = f"worker died: {dead.cause}"
        recovered = self._store.recover(worker_ids=[dead.id], job_ids=dead.job_ids, crashed=True, reason=reason)
        released = self._store.release_orphans(dead.id, known=dead.job_ids)
        if released:
            liveness_logs.unstarted_released(process.name, len(released))
        if recovered or released:
            return
        self._store.delete_workers([dead.id])
        if dead.no_statement_after > now:
            dead.look_at = dead.no_statement_after
        elif self._store.still_holding([dead.id]):  # other transactions have locked the rest
            dead.look_at = now + LOCKED_INTERVAL
        else:
            process.awaiting_recovery.remove(dead)

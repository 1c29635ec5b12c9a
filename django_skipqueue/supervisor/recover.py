"""Recovers the jobs of dead workers, and recovers or releases the jobs of the supervisor's processes that have ended.

Invariant: running jobs are recovered, and one attempt is charged. Jobs that a process of this supervisor had not
started are released, and no attempt is charged. The row of the process is deleted when it holds no job.
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
from .processes import DeadProcess, WorkerProcess

LONGEST_RECOVER_INTERVAL = 5.0
"""Seconds between two checks of the heartbeats, or a quarter of the worker timeout, if that is less."""

LOCKED_JOBS_SECONDS = 1.0
"""Seconds until the next try to recover jobs of a dead worker whose rows another transaction has locked."""

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until the next try for a dead worker that holds no job: its last claim may be committed late."""


class Recover(Periodic):
    """Recovers the jobs of dead workers, and old running jobs whose `locked_by` matches no row of a worker."""

    name = "recover"

    needs_fresh_heartbeat = True

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float, heartbeat: Periodic) -> None:
        """heartbeat: of this supervisor. If it fails, the heartbeats of other supervisors may fail as well."""
        self._store = store
        self._dead = dead
        self._heartbeat = heartbeat
        self._sessions = DeadSessions(store)
        self._interval = min(timeout / 4, LONGEST_RECOVER_INTERVAL)
        self._retry_at: dict[str, float] = {}  # when to try a worker again, by its id

    def run(self, now: float) -> None:
        if self._heartbeat.has_failed:
            self._dead.restart_observation()
            self.run_again_in(self._interval)
            return
        self._dead.observe()
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
            self._retry_at |= {id: now + (LOCKED_JOBS_SECONDS if id in locked else LOOK_AGAIN_SECONDS) for id in due}
            if self._dead.locked_before is not None:
                recovered += self._store.recover_without_worker(locked_before=self._dead.locked_before)
        return len(recovered) >= BATCH_ROWS


LONGEST_RECOVER_RUN = 0.2
"""Seconds after which one run handles no further process."""

RECOVER_REFUSED_SECONDS = 10.0
"""Seconds until the next try for a dead process after a database error."""


class RecoverOwn(Service):
    """Handles the dead processes that hold jobs one by one, so that an error with one does not delay the rest."""

    name = "recover_own"

    def __init__(self, store: Store, processes: Sequence[WorkerProcess]) -> None:
        self._store = store
        self._sessions = DeadSessions(store)
        self._processes = processes
        self._handled: list[DeadProcess] = []

    @property
    def due_at(self) -> float:
        return min((dead.check_at for _, dead in self._waiting()), default=NEVER)

    def run(self, now: float) -> None:
        """Delete the rows of processes that ended well and hold no job. Then recover or release jobs of the rest."""
        self._forget_idle([pair for pair in self._waiting() if pair[1].ended_well and pair[1].check_at <= now])
        while due := [pair for pair in self._waiting() if pair[1].check_at <= now]:
            self._take_back(*min(due, key=lambda pair: (pair[1].ended_well, pair[1].check_at)), now)
            if time.monotonic() > now + LONGEST_RECOVER_RUN:
                break

    def refused(self, error: Error) -> None:
        """Put off the next try for the processes of the failed statement."""
        for dead in self._handled:
            dead.check_at = time.monotonic() + RECOVER_REFUSED_SECONDS
        liveness_logs.service_failed(self.name, error, RECOVER_REFUSED_SECONDS)

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
        """Recover or release one batch of the dead process's jobs. If it has no jobs left, delete its row."""
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
            dead.check_at = dead.no_statement_after
        elif self._store.still_holding([dead.id]):  # other transactions have locked its jobs
            dead.check_at = now + LOCKED_JOBS_SECONDS
        else:
            process.awaiting_recovery.remove(dead)

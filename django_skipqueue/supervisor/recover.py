"""Recover the jobs of dead workers. For the supervisor's own processes, also release jobs that had not started.

Jobs that were running are recovered, and their attempts count. Jobs that a process of this supervisor had claimed but
not started are released, and no attempt counts. The row of a dead process is deleted when it holds no more jobs.
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
"""The seconds between two checks of the heartbeats, or a quarter of the worker timeout if that is less."""

LOCKED_JOBS_SECONDS = 1.0
"""If another transaction has locked the jobs of a dead worker, the seconds until the next try to recover them."""

LOOK_AGAIN_SECONDS = 15.0
"""If a dead worker holds no jobs, the seconds until it is checked again, because its last claim may be committed
late."""


class Recover(Periodic):
    """A service that recovers the jobs of dead workers, and old running jobs whose worker has no row."""

    name = "recover"

    needs_fresh_heartbeat = True

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float, heartbeat: Periodic) -> None:
        """heartbeat: writes this supervisor's heartbeats. If it fails, other supervisors may fail too, yet be alive."""
        self._store = store
        self._dead = dead
        self._heartbeat = heartbeat
        self._sessions = DeadSessions(store)
        self._interval = min(timeout / 4, LONGEST_RECOVER_INTERVAL)
        self._retry_at: dict[str, float] = {}  # by worker id: when to try again to recover its jobs

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
        """Recover one batch of the jobs of dead workers. Returns whether there may be more."""
        now = time.monotonic()
        self._retry_at = {id: retry_at for id, retry_at in self._retry_at.items() if id in self._dead.ids}
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
"""If a run has taken this many seconds, it does not handle another process."""

RECOVER_REFUSED_SECONDS = 10.0
"""After a database error, the seconds until a dead process is tried again."""


class RecoverOwn(Service):
    """A service that takes back the jobs of the supervisor's own dead processes.

    It handles the processes one by one, so that an error with one process does not delay the other processes.
    """

    name = "recover_own"

    def __init__(self, store: Store, processes: Sequence[WorkerProcess]) -> None:
        self._store = store
        self._sessions = DeadSessions(store)
        self._processes = processes
        self._handled: list[DeadProcess] = []

    @property
    def due_at(self) -> float:
        return min((dead.check_at for _, dead in self._awaiting_recovery()), default=NEVER)

    def run(self, now: float) -> None:
        """Delete the rows of processes that ended well and hold no jobs. Take back the jobs of all other processes."""
        due = [(process, dead) for process, dead in self._awaiting_recovery() if dead.check_at <= now]
        self._forget_idle([(process, dead) for process, dead in due if dead.ended_well])
        while due := [(process, dead) for process, dead in self._awaiting_recovery() if dead.check_at <= now]:
            process, dead = min(due, key=lambda pair: (pair[1].ended_well, pair[1].check_at))
            self._take_back(process, dead, now)
            if time.monotonic() > now + LONGEST_RECOVER_RUN:
                break

    def refused(self, error: Error) -> None:
        """Postpone the next try for the processes that the failed statement was about."""
        for dead in self._handled:
            dead.check_at = time.monotonic() + RECOVER_REFUSED_SECONDS
        liveness_logs.service_failed(self.name, error, RECOVER_REFUSED_SECONDS)

    def _awaiting_recovery(self) -> list[tuple[WorkerProcess, DeadProcess]]:
        return [(process, dead) for process in self._processes for dead in process.awaiting_recovery]

    def _forget_idle(self, ended_processes: list[tuple[WorkerProcess, DeadProcess]]) -> None:
        self._handled = [dead for _, dead in ended_processes]
        if ended_processes:
            holding = self._store.still_holding([dead.id for dead in self._handled])
            self._store.delete_workers([dead.id for dead in self._handled if dead.id not in holding])
            for process, dead in ended_processes:
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

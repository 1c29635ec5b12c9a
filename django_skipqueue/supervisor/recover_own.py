"""Recovers or releases the jobs of this supervisor's processes that have ended.

Invariant: running jobs are recovered, and one attempt is charged. Jobs that had not started are released, and no
attempt is charged. The row of a process is deleted when no job of it is left.
"""

import time
from collections.abc import Sequence

from django.db import Error

from ..events import liveness_logs
from ..runtime.service import Service
from ..services.dead_sessions import DeadSessions
from ..store import Store
from ..values.times import NEVER
from .process import LOCKED_INTERVAL, DeadProcess, WorkerProcess

REFUSED_INTERVAL = 10.0
"""Seconds until the next try for a dead process after an error of the database."""


class RecoverOwn(Service):
    """Handles one dead process at a time, so that an error about one does not delay the others."""

    name = "recover_own"

    def __init__(
        self,
        store: Store,
        processes: Sequence[WorkerProcess],
    ) -> None:
        self._store = store
        self._sessions = DeadSessions(store)
        self._processes = processes

    @property
    def due_at(self) -> float:
        return min((dead.look_at for process in self._processes for dead in process.awaiting_recovery), default=NEVER)

    def run(self, now: float) -> None:
        """Recover or release one batch of one dead process. If it has no jobs left, delete its row."""
        process, dead = self._first()
        if self._take_back(process.name, dead):
            return
        self._store.delete_workers([dead.id])
        if dead.no_statement_after > now:
            dead.look_at = dead.no_statement_after
        elif self._store.still_holding([dead.id]):  # other transactions have locked the rest
            dead.look_at = now + LOCKED_INTERVAL
        else:
            process.awaiting_recovery.remove(dead)

    def refused(self, error: Error) -> None:
        """Put the next try for this process off. The others are not delayed."""
        _, dead = self._first()
        dead.look_at = time.monotonic() + REFUSED_INTERVAL
        liveness_logs.service_failed(self.name, error, REFUSED_INTERVAL)

    def _first(self) -> tuple[WorkerProcess, DeadProcess]:
        waiting = [(process, dead) for process in self._processes for dead in process.awaiting_recovery]
        return min(waiting, key=lambda pair: pair[1].look_at)

    def _take_back(self, name: str, dead: DeadProcess) -> bool:
        """Recover running jobs and release the others, one batch. Returns whether there were any."""
        self._sessions.end([dead.id])
        recovered = self._store.recover(worker_ids=[dead.id], job_ids=dead.job_ids, reason=f"worker died: {dead.cause}")
        released = self._store.release_orphans(dead.id, known=dead.job_ids)
        if released:
            liveness_logs.unstarted_released(name, len(released))
        return bool(recovered or released)

"""Takes back what the processes of this supervisor held that have ended.

Invariant: what ran is recovered, and what was not begun is released, at no attempt. The row of a process goes when
nothing of its is left.
"""

import time
from collections.abc import Sequence

from django.db import Error

from ..events import liveness_logs
from ..runtime.service import NEVER, Service
from ..store import Store
from .process import LOCKED_INTERVAL, DeadProcess, WorkerProcess

REFUSED_INTERVAL = 10.0
"""Seconds until jobs of a dead process are taken back after the database has refused that."""


class RecoverOwn(Service):
    """Sees to one dead process at a time: one that the database refuses keeps no other waiting."""

    name = "recover_own"

    def __init__(
        self,
        store: Store,
        processes: Sequence[WorkerProcess],
    ) -> None:
        self._store = store
        self._processes = processes

    @property
    def due_at(self) -> float:
        """When to look at the first of them."""
        return min((dead.look_at for process in self._processes for dead in process.awaiting_recovery), default=NEVER)

    def run(self, now: float) -> None:
        """Take back one batch of what the first of them held; if there was none, remove its row."""
        process, dead = self._first()
        if self._take_back(process.name, dead):
            return
        self._store.delete_workers([dead.id])
        if dead.no_statement_after > now:
            dead.look_at = dead.no_statement_after
        elif self._store.has_jobs(dead.id):  # somebody has locked what is left
            dead.look_at = now + LOCKED_INTERVAL
        else:
            process.awaiting_recovery.remove(dead)

    def refused(self, error: Error) -> None:
        """Try that process again later. What the database refuses about one of the dead concerns no other."""
        _, dead = self._first()
        dead.look_at = time.monotonic() + REFUSED_INTERVAL
        liveness_logs.service_failed(self.name, error, REFUSED_INTERVAL)

    def _first(self) -> tuple[WorkerProcess, DeadProcess]:
        waiting = [(process, dead) for process in self._processes for dead in process.awaiting_recovery]
        return min(waiting, key=lambda pair: pair[1].look_at)

    def _take_back(self, name: str, dead: DeadProcess) -> bool:
        """One batch: recover what ran, release what was not begun; whether there was any."""
        recovered = self._store.recover(worker_ids=[dead.id], job_ids=dead.job_ids, reason=f"worker died: {dead.cause}")
        released = self._store.release_orphans(dead.id, known=dead.job_ids)
        if released:
            liveness_logs.unstarted_released(name, len(released))
        return bool(recovered or released)

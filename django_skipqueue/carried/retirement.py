"""Ends a process of Celery in which an attempt was interrupted or is stuck, as a worker's process is replaced.

An interruption may have left a lock taken, and a stuck attempt keeps its thread.

Invariant: a process ends while no task runs in it, unless each further job would wait there for ever.
"""

import os
import signal
import threading
from typing import Any

from celery.signals import task_postrun, task_prerun

from ..events import carried_logs
from ..execution.interruption import Interrupter
from ..execution.pool import Pool
from ..runtime.protocol import EXIT_RECYCLED, EXIT_STUCK
from ..values.times import NEVER

IDLE_SECONDS = 0.5
"""Seconds without a task, after which the process ends: Celery's main process knows that its last task has ended."""


class Retirement:
    """A forked process of Celery's pool ends by itself, and its main process replaces it.

    A process with a pool of threads goes on: to end it would end the other attempts. Once all its slots are stuck it
    asks Celery for a warm shutdown, and whoever has started it starts it again.
    """

    def __init__(self, worker: str, *, is_forked: bool) -> None:
        self._worker = worker
        self._is_forked = is_forked
        self._lock = threading.Lock()
        self._code: int | None = None
        self._is_full = False
        self._running = 0
        self._timer: threading.Timer | None = None

    def note(self, pool: Pool, interrupter: Interrupter) -> None:
        """Decide whether the process must end. Called after time limits were enforced."""
        self._is_full = len(interrupter.stuck()) > 1 and pool.is_used_up
        if self._code is not None or (interrupter.interrupted_at == NEVER and not pool.is_used_up):
            return
        if self._is_forked:
            self._code = EXIT_STUCK if pool.is_used_up else EXIT_RECYCLED
            self._running = 1  # the task of that attempt
            task_prerun.connect(self._begins)
            task_postrun.connect(self._ends)
        elif pool.is_used_up:
            self._code = EXIT_STUCK
            carried_logs.carried_process_stops(self._worker)
            os.kill(os.getpid(), signal.SIGTERM)

    @property
    def is_due(self) -> bool:
        return self._code is not None

    def require_room(self) -> None:
        """End the process if a further job would wait for ever. The broker delivers the job again."""
        if self._is_full and self._is_forked:
            os._exit(EXIT_STUCK)

    def _begins(self, **_: Any) -> None:
        with self._lock:
            self._running += 1

    def _ends(self, **_: Any) -> None:
        with self._lock:
            self._running -= 1
            if self._running <= 0:
                self._timer = threading.Timer(IDLE_SECONDS, self._end_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._running <= 0 and self._code is not None:
                os._exit(self._code)

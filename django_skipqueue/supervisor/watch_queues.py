"""Watches the queues in place of the workers: listens for notifications, and looks for jobs at intervals.

Invariant: while a supervisor cannot watch, for whatever reason, its promises end, and its workers watch themselves.
"""

import time
from collections.abc import Callable, Sequence

from ..runtime.control_connection import ControlConnection
from ..runtime.service import Periodic
from ..runtime.standby import PROMISE
from ..runtime.worker_options import WorkerOptions
from ..store import Store
from .process import WorkerProcess

INTERVAL = 1.0
"""Seconds between two promises, at most. Then it is seen as well whether the connection still listens."""

SEARCHED = 5_000
"""Queues that one look finds, at most. If there are more, workers are called for every queue that they are given."""


class WatchQueues(Periodic):
    """Used by the supervisor's thread."""

    name = "watch_queues"

    def __init__(
        self,
        store: Store,
        control: ControlConnection,
        processes: Sequence[WorkerProcess],
        options: WorkerOptions,
        *,
        announce: Callable[[list[tuple[str, int]]], object],
    ) -> None:
        """`announce` is called with the queues that have jobs, each with a number of jobs."""
        self._store = store
        self._control = control
        self._processes = processes
        self._options = options
        self._announce = announce
        self._look_at = 0.0

    def run(self, now: float) -> None:
        """Listen, look for jobs if it is time, and promise the workers to go on."""
        if self._options.listen and self._control.listen(for_scheduled=True):
            self._look_at = now  # what came before was not announced here
        if self._look_at <= now:
            self._look_at = now + self._options.poll_interval
            if any(process.vacancy for process in self._processes):
                names = self._store.queues_with_jobs(limit=SEARCHED)
                more = self._options.queue_names if len(names) == SEARCHED else ()
                self._announce([(name, 1) for name in (*names, *more)])
        for process in self._processes:
            if process.pid:
                process.standby.watched_until = time.monotonic() + PROMISE
                process.standby.is_session = self._control.is_session
        self.run_again_in(max(min(INTERVAL, self._look_at - now), 0.0))

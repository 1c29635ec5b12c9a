"""Watches the queues in place of the workers: listens for notifications, and looks for jobs at intervals.

Invariant: while a supervisor cannot watch, for whatever reason, its promises end, and its workers watch themselves.
"""

import time
from collections.abc import Callable, Collection, Sequence

from ..queue.notify import QUEUES_PAYLOAD
from ..queue.queues import paused_queues
from ..queue.store import Store
from ..values.records import NEVER
from ..worker.control_connection import ControlConnection
from ..worker.loop import Periodic
from ..worker.options import WorkerOptions
from ..worker.protocol import PROMISE
from .processes import WorkerProcess

INTERVAL = 0.5
"""Seconds between two promises. Then it is seen as well whether the connection still listens."""

LOOK_SHARE = 0.1
"""Share of the time that looks may take: among a million dead index entries a look takes seconds."""

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
        looked: Callable[[list[str], list[str]], object],
    ) -> None:
        """`looked` is called with the queues in which a look has found jobs, and with the paused queues."""
        self._store = store
        self._control = control
        self._processes = processes
        self._options = options
        self._looked = looked
        self._look_at = 0.0
        self._ran_at = NEVER
        control.on_broken = self._end_promises

    def run(self, now: float) -> None:
        if self._options.listen and self._control.listen(as_supervisor=True):
            self._look_at = now  # what came before was not announced here
        if self._look_at <= now and any(process.has_room for process in self._processes):
            self._look_at = now + self._options.poll_interval
            started = time.monotonic()
            paused = paused_queues(self._store, limit=SEARCHED)
            names = self._store.queues_with_jobs(limit=SEARCHED)
            self._look_at = max(self._look_at, now + (time.monotonic() - started) / LOOK_SHARE)
            more = self._options.queue_names if len(names) == SEARCHED else ()
            self._looked([*names, *more], paused)
        if now - self._ran_at < PROMISE / 2:  # else other services take so long that calls would come late
            self._promise()
        self._ran_at = now
        self.run_again_in(min(INTERVAL, self._look_at - now) if self._look_at > now else INTERVAL)

    def notified(self, payloads: Collection[str]) -> None:
        """Look at once: a queue was paused or resumed. After an error, the delay is not shortened."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self._look_at = self.due_at = 0.0

    def _promise(self) -> None:
        for process in self._processes:
            if process.pid:
                process.standby.watched_until = time.monotonic() + PROMISE
                process.standby.is_session = self._control.is_session

    def _end_promises(self) -> None:
        for process in self._processes:
            if process.pid:
                process.standby.watched_until = 0.0
                process.standby.is_session = False  # the next connection may be a pooler's

"""What a worker does for itself while its supervisor hangs: it writes its heartbeat, and listens for notifications.

A supervisor writes the heartbeats of all its workers, and shows each of them when. A worker whose supervisor has
written none for a third of the worker timeout writes its own, so that its jobs are not recovered when only its
supervisor hangs, is stopped or has lost the database.

Invariant: a worker claims only if its last heartbeat, its own or its supervisor's, is at most half a worker timeout
old. So a worker that counts as dead has claimed nothing for a long time.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ..events import liveness_logs
from ..queue.store import Store
from .control_connection import ControlConnection
from .loop import Service
from .options import WorkerOptions
from .protocol import Standby

RETRY_DELAY = 1.0
"""Seconds until the next heartbeat after one that failed."""


def described(options: WorkerOptions, *, id: str, name: str, pid: int, **figures: int | None) -> Mapping[str, Any]:
    """The row of a worker process, without its times.

    figures: memory_mb and jobs_done, if they are known; and the concurrency, if it is not that of the options.
    """
    return {
        "id": id,
        "name": name,
        "hostname": socket.gethostname(),
        "pid": pid,
        "queues": list(options.queue_names),
        "concurrency": options.concurrency,
        **figures,
    }


class OwnRow(Service):
    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        options: WorkerOptions,
        *,
        id: str,
        name: str,
        standby: Standby | None = None,
        requested: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`requested` is called with what an operator has requested, if the supervisor is silent and does not do it."""
        self._requested = requested
        self._row = described(options, id=id, name=name, pid=os.getpid())
        self._store = store
        self._standby = standby or Standby()
        self._next = 0.0  # when to write the next, unless the supervisor writes one
        self._timeout = options.worker_timeout
        self._interval = options.worker_timeout / 4
        self._silence = options.worker_timeout / 3  # longer than the pause between two heartbeats of the supervisor
        self._alive_at = float("-inf")  # time of the last heartbeat that this worker wrote
        self._written: datetime | None = None  # the last heartbeat that this worker wrote, by the database's clock
        self._supervisor_seen_at = time.monotonic()  # when the row last had a heartbeat from the supervisor
        self._is_alone = False
        self._was_made = False
        self._was_refused = False

    @property
    def due_at(self) -> float:
        """When to write a heartbeat. The first one inserts the row; later ones follow a silence of the supervisor."""
        if self._is_alone or not self._was_made:
            return self._next
        return max(self._next, self._standby.heartbeat_at + self._silence)

    def is_alive(self, now: float) -> bool:
        """Whether this worker or its supervisor wrote a heartbeat within half a worker timeout."""
        return self._was_made and now - max(self._alive_at, self._standby.heartbeat_at) <= self._timeout / 2

    def run(self, now: float) -> None:
        """Write a heartbeat, and check whether the supervisor has written one since the last.

        If the connection breaks, the heartbeat stays due: the loop runs it again as soon as the connection is open.
        """
        found = self._store.heartbeat_worker(self._row["id"])
        if found is None:
            self._store.heartbeat_workers([self._row])
            if self._was_made:
                liveness_logs.row_gone(self._row["name"])
        self._was_made = True
        self._was_refused = False
        self._alive_at = now
        self._next = now + self._interval
        before, written, requested = found or (None, None, "")
        self._note_supervisor(before, written)
        if requested and self._is_alone:
            self._requested(requested)

    def refused(self, error: BaseException) -> None:
        """Try again soon. The worker goes on settling meanwhile."""
        self._next = time.monotonic() + min(self._interval, RETRY_DELAY)
        if not self._was_refused:
            liveness_logs.heartbeat_refused(self._row["name"], error)
        self._was_refused = True

    def _note_supervisor(self, before: datetime | None, written: datetime | None) -> None:
        """Note whether the supervisor wrote a heartbeat: `before` is then not the one that this worker wrote last."""
        now = time.monotonic()
        self._supervisor_seen_at = max(self._supervisor_seen_at, self._standby.heartbeat_at)
        if before is None or before != self._written:
            self._supervisor_seen_at = now
            if self._is_alone:
                liveness_logs.supervisor_back(self._row["name"])
            self._is_alone = False
        elif not self._is_alone and now - self._supervisor_seen_at >= self._timeout / 2:
            self._is_alone = True
            liveness_logs.supervisor_silent(self._row["name"], now - self._supervisor_seen_at)
        self._written = written


CHECK_INTERVAL = 1.0
"""Seconds between two checks whether notifications arrive, and whether the supervisor watches again."""


class WatchItself(Service):
    """Used by the control loop's thread of a worker."""

    name = "watch_itself"

    def __init__(self, control: ControlConnection, standby: Standby, *, look: Callable[[], object]) -> None:
        """`look` is called when this connection begins to listen: there may be jobs that nobody was notified of."""
        self._control = control
        self._standby = standby
        self._look = look
        self._check_at = 0.0

    @property
    def due_at(self) -> float:
        """When the promise of the supervisor ends. While this connection listens: the time of the next check."""
        return self._check_at if self._control.listens else self._standby.watched_until

    def run(self, now: float) -> None:
        self._check_at = now + CHECK_INTERVAL
        if self._standby.watched_until > now:
            self._control.unlisten()
        elif self._control.listen():
            self._look()

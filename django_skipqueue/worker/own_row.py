"""A worker's own row, by which others see that it is alive.

Its supervisor beats for all its workers at once. The worker beats as well, a few times in a worker timeout: where the
supervisor is silent alone (stopped, cut off, hung), that keeps its jobs from being taken.

Invariant: a worker claims only while it has said within half a worker timeout that it is alive. So what a worker holds
that others take for dead was claimed long before.
"""

import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..events import liveness_logs
from ..runtime.service import Service
from ..runtime.worker_options import WorkerOptions
from ..store import Store

RETRY_DELAY = 1.0
"""Seconds until the next heartbeat after one that the database has refused."""


def described(options: WorkerOptions, *, id: str, name: str, pid: int) -> Mapping[str, Any]:
    """The row of a process, without its times."""
    return {
        "id": id,
        "name": name,
        "hostname": socket.gethostname(),
        "pid": pid,
        "queues": list(options.queue_names),
        "concurrency": options.concurrency,
    }


class OwnRow(Service):
    """The heartbeat of a worker."""

    name = "heartbeat"
    due_at = 0.0

    def __init__(self, store: Store, options: WorkerOptions, *, id: str, name: str) -> None:
        self._row = described(options, id=id, name=name, pid=os.getpid())
        self._store = store
        self._timeout = options.worker_timeout
        self._interval = options.worker_timeout / 4
        self._alive_at = float("-inf")  # when that was last said
        self._written: datetime | None = None  # the heartbeat that was ours
        self._heard_at = time.monotonic()  # when a heartbeat was seen last that was not
        self._is_alone = False
        self._was_made = False
        self._was_refused = False

    def is_alive(self, now: float) -> bool:
        """Whether others have reason to take this worker for alive for a good while."""
        return now - self._alive_at <= self._timeout / 2

    def run(self, now: float) -> None:
        """Say that the worker is alive, and see whether its supervisor does."""
        self.due_at = now + self._interval
        found = self._store.heartbeat_worker(self._row["id"])
        if found is None:
            self._store.heartbeat_workers([self._row])
            if self._was_made:
                liveness_logs.row_gone(self._row["name"])
        self._was_made = True
        self._was_refused = False
        self._alive_at = now
        self._note_supervisor(*(found or (None, None)))

    def refused(self, error: BaseException) -> None:
        """Note that this could not be said, and say it again soon: that is no reason not to settle."""
        self.due_at = time.monotonic() + min(self._interval, RETRY_DELAY)
        if not self._was_refused:
            liveness_logs.heartbeat_refused(self._row["name"], error)
        self._was_refused = True

    def _note_supervisor(self, before: datetime | None, written: datetime | None) -> None:
        """A heartbeat that is not our last one is the supervisor's."""
        now = time.monotonic()
        if before is None or before != self._written:
            self._heard_at = now
            if self._is_alone:
                liveness_logs.supervisor_back(self._row["name"])
            self._is_alone = False
        elif not self._is_alone and now - self._heard_at >= self._timeout / 2:
            self._is_alone = True
            liveness_logs.supervisor_silent(self._row["name"], now - self._heard_at)
        self._written = written

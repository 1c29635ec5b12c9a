"""Writes the rows of a supervisor's workers with their heartbeats, and reads what is requested of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..queue.notify import WORKERS_PAYLOAD
from ..queue.store import Store
from ..values.records import NEVER
from ..worker.loop import Periodic
from ..worker.options import WorkerOptions
from ..worker.own_row import described
from ..worker.recycle import resident_mb_of
from .processes import WorkerProcess


class Heartbeat(Periodic):
    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        *,
        workers: Callable[[], Sequence[Mapping[str, Any]]],
        interval: float,
        written: Callable[[float], object],
        requested: Callable[[Mapping[str, str]], object],
    ) -> None:
        """`workers` returns the rows of the running workers; `interval` is in seconds.

        `written` is called after each success, with the time at which the statement was sent, in monotonic seconds.
        `requested` is called with what operators have requested of these workers, by id, as long as it stands there.
        """
        self._written = written
        self._requested = requested
        self._store = store
        self._workers = workers
        self._interval = interval

    def run(self, now: float) -> None:
        requests = self._store.heartbeat_workers(self._workers())
        self._written(now)
        self.run_again_in(self._interval)
        if requests:
            self._requested(requests)

    def notified(self, payloads: Collection[str]) -> None:
        """Read the requests at once: there is a new one. After an error, the delay is not shortened."""
        if WORKERS_PAYLOAD in payloads and self.due_at < NEVER and not self.has_failed:
            self.due_at = 0.0


def rows_of(options: WorkerOptions, processes: Sequence[WorkerProcess]) -> list[Mapping[str, Any]]:
    return [
        described(
            options,
            id=process.id,
            name=process.name,
            concurrency=process.concurrency,
            pid=process.pid,
            memory_mb=resident_mb_of(process.pid),
            jobs_done=process.stamps.last().jobs_done,
        )
        for process in processes
        if process.pid
    ]

"""Writes the heartbeats of a supervisor's workers, and reads what is requested of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..runtime.service import Periodic
from ..store import Store
from ..store.notify import WORKERS_PAYLOAD
from ..values.times import NEVER


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

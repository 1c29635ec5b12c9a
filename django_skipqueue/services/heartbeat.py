"""Writes the heartbeats of a supervisor's workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runtime.service import Periodic
from ..store import Store


class Heartbeat(Periodic):
    """Writes the rows of all workers, in one statement."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        *,
        workers: Callable[[], Sequence[Mapping[str, Any]]],
        interval: float,
        written: Callable[[float], object],
    ) -> None:
        """`workers` returns the rows of the running workers; `interval` is in seconds.

        `written` is called after each success, with the time at which the statement was sent, in monotonic seconds.
        """
        self._written = written
        self._store = store
        self._workers = workers
        self._interval = interval

    def run(self, now: float) -> None:
        """Write all rows."""
        self._store.heartbeat_workers(self._workers())
        self._written(now)
        self.run_again_in(self._interval)

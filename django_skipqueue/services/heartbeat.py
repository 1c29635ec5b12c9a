"""Says that the workers of a supervisor are alive."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..store import Store
from .service import Service


class Heartbeat(Service):
    """Writes the rows of the workers, all in one statement."""

    name = "heartbeat"

    def __init__(self, store: Store, *, workers: Callable[[], Sequence[Mapping[str, Any]]], interval: float) -> None:
        """`workers` describes those that run now; `interval` is in seconds."""
        super().__init__(store)
        self._workers = workers
        self._interval = interval

    def run(self) -> float:
        """See `Service.run`."""
        self.store.heartbeat_workers(self._workers())
        return self._interval

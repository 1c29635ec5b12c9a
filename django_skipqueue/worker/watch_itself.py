"""Listens for notifications while the supervisor does not watch the queues: it hangs, or has lost the database."""

from collections.abc import Callable

from ..runtime.control_connection import ControlConnection
from ..runtime.service import Service
from ..runtime.standby import Standby

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

"""Wakes a supervisor when a job is scheduled that is due before its next look."""

from ..runtime.control_connection import ControlConnection
from ..store import Store
from .service import Service

LISTEN_INTERVAL = 1.0
"""Seconds between two looks whether the connection still listens."""


class Listen(Service):
    """Sends LISTEN, once for each connection."""

    name = "listen"

    def __init__(self, store: Store, control: ControlConnection) -> None:
        super().__init__(store)
        self._control = control

    def run(self) -> float:
        """See `Service.run`."""
        self._control.listen_for_scheduled()
        return LISTEN_INTERVAL

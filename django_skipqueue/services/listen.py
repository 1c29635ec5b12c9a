"""Lets notifications wake a supervisor when a job is scheduled that is due before the next check."""

from ..runtime.control_connection import ControlConnection
from ..runtime.service import Periodic

LISTEN_INTERVAL = 1.0
"""Seconds between two checks whether the connection still listens."""


class Listen(Periodic):
    """Sends LISTEN, once for each connection."""

    name = "listen"

    def __init__(self, control: ControlConnection) -> None:
        self._control = control

    def run(self, now: float) -> None:
        """Send LISTEN, unless this connection listens already."""
        self._control.listen_for_scheduled()
        self.run_again_in(LISTEN_INTERVAL)

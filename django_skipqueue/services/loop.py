"""Does the services of a supervisor that are due.

Invariant: each fails alone. None keeps the heartbeat waiting for longer than one batch takes.
"""

from collections.abc import Sequence

from ..runtime.control_connection import ControlConnection
from .service import Service


class ServiceLoop:
    """Used by the supervisor's main thread. Times are monotonic seconds."""

    def __init__(self, control: ControlConnection, heartbeat: Service, others: Sequence[Service]) -> None:
        self._control = control
        self._heartbeat = heartbeat
        self._others = others

    def run_due(self) -> None:
        """Do one batch of each that is due; a due heartbeat comes before each."""
        for service in self._others:
            if service.is_due and service.makes_due:
                service.makes_due.due_at = 0.0
            self._run_if_due(self._heartbeat)
            self._run_if_due(service)

    def hurry(self) -> None:
        """Somebody has scheduled a job that is due soon."""
        for service in self._others:
            service.hurry()

    @property
    def due_at(self) -> float:
        """When the next one is due."""
        return min(service.due_at for service in (self._heartbeat, *self._others))

    def _run_if_due(self, service: Service) -> None:
        if service.is_due and not self._control.retry_in:
            with self._control.attempt(refused=service.failed):
                service.do()

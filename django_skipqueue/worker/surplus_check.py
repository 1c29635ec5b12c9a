"""Releases claimed jobs that would wait in this worker for too long."""

from ..runtime.control_connection import ControlConnection
from ..runtime.service import Service
from .in_flight import InFlightJobs

INTERVAL = 0.1
"""Seconds between two checks of the jobs that wait here."""


class SurplusCheck(Service):
    """The service that releases surplus jobs, so that another worker may run them, or this one may run urgent jobs."""

    name = "surplus_check"
    loop_handles_errors = False  # `InFlightJobs` handles the errors of each statement

    def __init__(self, in_flight: InFlightJobs, control: ControlConnection) -> None:
        self._in_flight = in_flight
        self._control = control
        self._next_look = 0.0

    @property
    def due_at(self) -> float:
        """At once if a claimed job has no free slot in its runner, otherwise the time of the next check."""
        if self._in_flight.has_misplaced:
            return self._control.retry_at
        due_at = 0.0 if self._in_flight.has_waiting else self._in_flight.unresponsive_at
        return max(due_at, self._next_look, self._control.retry_at)

    def run(self, now: float) -> None:
        self._next_look = now + INTERVAL
        self._in_flight.release_surplus(now)

"""The service that goes to the database for a worker's jobs: it settles what has finished, and claims more."""

from collections.abc import Callable, Collection

from ..runtime.control_connection import ControlConnection
from ..runtime.service import Service
from .in_flight import InFlightJobs


class SettleAndClaim(Service):
    """One exchange each time, as soon as there is an outcome, or room and a reason to look for jobs."""

    name = "settle_and_claim"
    loop_handles_errors = False  # `InFlightJobs` handles the errors of each statement

    def __init__(
        self,
        in_flight: InFlightJobs,
        control: ControlConnection,
        *,
        room: Callable[[float], int],
        exchanged: Callable[[bool], None],
    ) -> None:
        """`room`: how many jobs may be claimed now. `exchanged` is called with whether all queues were found empty."""
        self._in_flight = in_flight
        self._control = control
        self._room = room
        self._exchanged = exchanged

    @property
    def due_at(self) -> float:
        """At once while outcomes are to be written or a result is to be applied, else when to look for jobs."""
        return max(self._in_flight.next_exchange(self._room), self._control.retry_at)

    def run(self, now: float) -> None:
        """Make an exchange. Where none is due, apply the last one: there is nothing to overlap it with."""
        if not self._in_flight.has_finished:
            self._in_flight.apply_exchange()
        room = self._room(now)
        if self._in_flight.exchange_is_due(room, now):
            self._exchanged(self._in_flight.exchange(room))

    def notified(self, payloads: Collection[str]) -> None:
        """Look for jobs at once in the queues that have got some."""
        self._in_flight.claiming.queues_notified(set(payloads))

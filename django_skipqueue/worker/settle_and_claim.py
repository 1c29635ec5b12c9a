"""The service of a worker that settles finished attempts and claims jobs.

A second service releases claimed jobs that would wait in this worker for too long.
"""

import time
from collections.abc import Callable, Collection

from ..queue.notify import jobs_in
from .control_connection import ControlConnection
from .in_flight import InFlightJobs
from .loop import Service


class SettleAndClaim(Service):
    """Sends one exchange per run, as soon as an outcome waits, or a claim is due and a slot is free."""

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
        """`room` returns how many jobs may be claimed now. `exchanged` is called with whether all queues were empty."""
        self._in_flight = in_flight
        self._control = control
        self._room = room
        self._exchanged = exchanged

    @property
    def due_at(self) -> float:
        """At once if outcomes wait or a result is to be applied, otherwise the time of the next claim."""
        return max(self._in_flight.next_exchange(self._room, time.monotonic()), self._control.retry_at)

    def run(self, now: float) -> None:
        """Send an exchange, if one is due. If no attempt has finished, first apply the last result."""
        if not self._in_flight.has_finished:
            self._in_flight.apply_exchange()
        room = self._room(now)
        if self._in_flight.next_exchange(lambda _: room, now) <= now:
            self._exchanged(self._in_flight.exchange(room))

    def notified(self, payloads: Collection[str]) -> None:
        self._in_flight.claiming.queues_notified({jobs_in(payload)[0] for payload in payloads} - {""})


SURPLUS_CHECK_SECONDS = 0.1
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
        self._next_look = now + SURPLUS_CHECK_SECONDS
        self._in_flight.release_surplus(now)

"""Runs the services of a supervisor or of a worker, and sleeps until the next one is due.

Invariant: a service with a method `refused` keeps no other from running, if its database error leaves the connection
usable. After any other database error, all services that send statements wait until the connection is open again. Any
other exception ends the process. A service delays the heartbeat only by the time of one run.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .control_connection import ControlConnection
from .service import Service
from .wakeup import Wakeup


class Loop:
    """Used by the main thread of its process. All times are monotonic seconds."""

    def __init__(
        self, control: ControlConnection, wakeup: Wakeup, *, heartbeat: Service, services: Sequence[Service]
    ) -> None:
        """The services run in the order of the list."""
        self._control = control
        self._wakeup = wakeup
        self._heartbeat = heartbeat
        self._services = services

    def run_due(self) -> None:
        """Run each service that is due, once. A heartbeat that is due comes before each."""
        for service in self._services:
            if self._is_due(self._heartbeat) or (service.needs_fresh_heartbeat and self._is_due(service)):
                self._run(self._heartbeat)
            if self._is_due(service):
                self._run(service)

    @property
    def due_at(self) -> float:
        return min(self._due_at(self._heartbeat), *map(self._due_at, self._services))

    def sleep(
        self,
        *,
        until: float,
        lifeline: int | None = None,
        unless: Callable[[], Any] = lambda: False,
        files: Iterable[int] = (),
    ) -> bool:
        """Sleep until the given time, or until a service is due, a notification arrives or `wakeup` is called.

        The sleep also ends when one of `files` can be read. Returns whether the file `lifeline` can be read.
        """
        self._deliver_notifications()  # those read with the answers of this turn do not make the socket readable
        socket = self._control.fileno()
        ready = self._wakeup.wait(
            min(until, self.due_at) - time.monotonic(),
            unless=unless,
            files=[file for file in (lifeline, socket, *files) if file is not None],
        )
        if socket in ready:
            self._deliver_notifications()
        return lifeline in ready

    def _due_at(self, service: Service) -> float:
        return max(service.due_at, self._control.retry_at) if service.loop_handles_errors else service.due_at

    def _is_due(self, service: Service) -> bool:
        return self._due_at(service) <= time.monotonic()

    def _run(self, service: Service) -> None:
        """Run a service, and then deliver the notifications that came meanwhile: the next one may take long."""
        if service.loop_handles_errors:
            with self._control.handling_errors(refused=service.refused):
                service.run(time.monotonic())
                service.succeeded()
        else:
            service.run(time.monotonic())
        self._deliver_notifications()

    def _deliver_notifications(self) -> None:
        if self._control.listens:
            with self._control.handling_errors():
                if payloads := self._control.notified():
                    for service in (self._heartbeat, *self._services):
                        service.notified(payloads)

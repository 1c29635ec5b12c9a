"""The main loop of a supervisor or a worker. It runs services when they are due, and sleeps until the next one is due.

A service runs in the thread of its loop. Several supervisors of one database may run the same service at the same time.

Threads, signals and sockets can wake the loop. No wake-up is missed, not even between the check for work and the sleep.
A call that wakes a loop which is already awake makes no system call.

If a service has a method `refused`, and a database error leaves the connection usable, the other services still run.
After any other database error, all services that send statements wait until the connection is open again. An exception
that is not a database error ends the process. The heartbeat may be written before each service, so that it is delayed
by at most one run of a service.
"""

import contextlib
import os
import random
import selectors
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from types import FrameType
from typing import Any, ClassVar

from django.db import Error

from ..events import liveness_logs
from .control_connection import ControlConnection

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 1.0, 60.0
"""The seconds until a periodic service runs again after a database error. The delay doubles with each successive
error."""


class Service(ABC):
    """Work that a loop does whenever the work is due. All times are by the monotonic clock."""

    name: str
    """The name of the service in log lines."""

    loop_handles_errors: ClassVar[bool] = True
    """Whether the loop catches database errors of this service, and skips it while the connection is broken. False if
    the service sends no statements, or handles their errors itself."""

    needs_fresh_heartbeat: ClassVar[bool] = False
    """Whether the loop writes a heartbeat right before each run."""

    refused: Callable[[Error], None] | None = None
    """Called by the loop with a database error that leaves the connection usable. If it is `None`, the loop closes the
    connection after every error."""

    @property
    @abstractmethod
    def due_at(self) -> float:
        """The time of the next run; `NEVER` if there is no reason to run."""

    @abstractmethod
    def run(self, now: float) -> None:
        """Do one batch of limited size. Afterwards `due_at` is in the future, unless there is more to do."""

    def succeeded(self) -> None:  # noqa: B027 (optional)
        """Called by the loop after each run that raised no error."""

    def notified(self, payloads: Collection[str]) -> None:  # noqa: B027 (optional)
        """Called by the loop with the payloads of notifications that have arrived."""


class Periodic(Service):
    """A service whose `run` sets the time of the next run by `run_again_in`. It waits longer after several errors."""

    due_at = 0.0
    _failures = 0

    def run_again_in(self, seconds: float) -> None:
        self.due_at = time.monotonic() + seconds

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    def refused(self, error: BaseException) -> None:
        """Log the error, and run again after a delay, which grows with each successive error."""
        self._failures += 1
        longest_delay = min(LONGEST_RETRY_DELAY, FIRST_RETRY_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest_delay / 2, longest_delay)  # noqa: S311 (spreads load, guards nothing)
        self.run_again_in(delay)
        liveness_logs.service_failed(self.name, error, delay)

    def succeeded(self) -> None:
        if self._failures:
            liveness_logs.service_back(self.name)
        self._failures = 0


class Timer(Service):
    """A service that calls a function of the loop's owner when it is due. The function handles database errors."""

    loop_handles_errors = False

    def __init__(self, name: str, due_at: Callable[[], float], run: Callable[[], object]) -> None:
        """`run` must change the value that `due_at` returns, or else the timer fires again at once."""
        self.name = name
        self._due_at = due_at
        self._run = run

    @property
    def due_at(self) -> float:
        return self._due_at()

    def run(self, now: float) -> None:
        self._run()


class Wakeup:
    """Wakes one control loop. Any thread may use `call`; only the thread of the loop may use the other methods."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self.write_end, False)
        self.is_asleep = False

    def on_signals(self, handler: Callable[[int], None], signals: Iterable[signal.Signals]) -> None:
        """Make these signals call `handler` and end a wait. The handler should only set a flag."""

        def handle(signal_number: int, _: FrameType | None) -> None:
            handler(signal_number)

        for signal_number in signals:
            signal.signal(signal_number, handle)
        signal.set_wakeup_fd(self.write_end, warn_on_full_buffer=False)

    def call(self) -> None:
        """Wake the loop, if it sleeps."""
        if self.is_asleep:
            self.is_asleep = False
            with contextlib.suppress(BlockingIOError):  # the pipe is full, so the loop will wake
                os.write(self.write_end, b"\0")

    def wait(
        self, timeout: float, *, unless: Callable[[], Any] = lambda: False, files: Iterable[int] = ()
    ) -> list[int]:
        """Sleep up to `timeout` seconds, unless `unless()` is true. Returns the files that can be read."""
        self.is_asleep = True  # set before `unless()`, so that work which arrives after it ends the sleep by `call`
        try:
            with selectors.PollSelector() as selector:  # creating an epoll for each wait would cost ten times as much
                for file in (self.read_end, *files):
                    selector.register(file, selectors.EVENT_READ)
                ready = [key.fd for key, _ in selector.select(0 if unless() else max(timeout, 0))]
            if self.read_end in ready:
                ready.remove(self.read_end)
                with contextlib.suppress(BlockingIOError):  # the pipe is empty
                    while os.read(self.read_end, 4096):
                        pass
            return ready
        finally:
            self.is_asleep = False

    def close(self) -> None:
        """Close the pipe. Called in a forked child process, which has its own `Wakeup`."""
        signal.set_wakeup_fd(-1)
        os.close(self.read_end)
        os.close(self.write_end)


class Loop:
    """Runs services in the main thread of a process. All times are by the monotonic clock."""

    def __init__(
        self, control: ControlConnection, wakeup: Wakeup, *, heartbeat: Service, services: Sequence[Service]
    ) -> None:
        """services: the loop runs them in this order. heartbeat: a service that may run before each of them."""
        self.control = control
        self._wakeup = wakeup
        self._heartbeat = heartbeat
        self._services = services

    def run_due(self) -> None:
        """Run each due service once. Before each service, write the heartbeat if it is due."""
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
        self._deliver_notifications()  # a notification that came with an answer does not make the socket readable
        database_socket = self.control.fileno()
        ready = self._wakeup.wait(
            min(until, self.due_at) - time.monotonic(),
            unless=unless,
            files=[file for file in (lifeline, database_socket, *files) if file is not None],
        )
        if database_socket in ready:
            self._deliver_notifications()
        return lifeline in ready

    def _due_at(self, service: Service) -> float:
        return max(service.due_at, self.control.retry_at) if service.loop_handles_errors else service.due_at

    def _is_due(self, service: Service) -> bool:
        return self._due_at(service) <= time.monotonic()

    def _run(self, service: Service) -> None:
        """Run a service, and then deliver notifications, because the next service may take long."""
        if service.loop_handles_errors:
            with self.control.handling_errors(refused=service.refused):
                service.run(time.monotonic())
                service.succeeded()
        else:
            service.run(time.monotonic())
        self._deliver_notifications()

    def _deliver_notifications(self) -> None:
        if self.control.listens:
            with self.control.handling_errors():
                if payloads := self.control.notified():
                    for service in (self._heartbeat, *self._services):
                        service.notified(payloads)

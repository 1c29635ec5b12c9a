"""Services: what a control loop does at intervals, in pieces of limited size.

Invariant: a service runs in the thread of its loop, and only when it is due. The services of supervisors may run in any
number of supervisors at the same time.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

from django.db import Error

from ..events import liveness_logs

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 1.0, 60.0
"""Seconds until a periodic service is tried again after a database error, doubled up to the second each time."""


class Service(ABC):
    """Something that a control loop does each time that it is due. All times are monotonic seconds."""

    name: str
    """For log lines."""

    loop_handles_errors: ClassVar[bool] = True
    """Whether the loop catches the database errors of this service, and skips it while the connection is down. If
    False, the service sends no statement, or does both itself."""

    needs_fresh_heartbeat: ClassVar[bool] = False
    """Whether the loop writes a heartbeat right before each run."""

    refused: Callable[[Error], None] | None = None
    """Called with a database error after which the connection is still usable. `None`: the loop closes the connection
    after every error."""

    @property
    @abstractmethod
    def due_at(self) -> float:
        """The time of the next run; `NEVER`: there is no reason for one."""

    @abstractmethod
    def run(self, now: float) -> None:
        """Do one piece of limited size. Then `due_at` is in the future, unless there is more to do at once."""

    def succeeded(self) -> None:  # noqa: B027 (optional)
        """Called after each run that raised no error."""

    def notified(self, payloads: Collection[str]) -> None:  # noqa: B027 (optional)
        """Called with the payloads of the notifications that the control connection has received."""


class Periodic(Service):
    """A service whose `run` sets the next time with `run_again_in`. After each error in a row it waits longer."""

    due_at = 0.0
    _failures = 0

    def run_again_in(self, seconds: float) -> None:
        self.due_at = time.monotonic() + seconds

    @property
    def has_failed(self) -> bool:
        return self._failures > 0

    def refused(self, error: BaseException) -> None:
        """Log the error, and try again after a delay that grows with each error in a row."""
        self._failures += 1
        longest = min(LONGEST_RETRY_DELAY, FIRST_RETRY_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
        self.run_again_in(delay)
        liveness_logs.service_failed(self.name, error, delay)

    def succeeded(self) -> None:
        if self._failures:
            liveness_logs.service_back(self.name)
        self._failures = 0


class Timer(Service):
    """A callback of the loop's owner, at a time that the owner sets. The callback sends no statement."""

    loop_handles_errors = False

    def __init__(self, name: str, due_at: Callable[[], float], run: Callable[[], object]) -> None:
        """`run` must change what `due_at` returns, or the timer fires again at once."""
        self.name = name
        self._due_at = due_at
        self._run = run

    @property
    def due_at(self) -> float:
        return self._due_at()

    def run(self, now: float) -> None:
        self._run()

"""A service: something that a control loop does at intervals, in pieces of limited size.

Invariant: a service runs in the thread of its loop, and only when it is due. Those of a supervisor may run in any
number of supervisors at the same time.
"""

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

from django.db import Error

from ..events import liveness_logs

NEVER = math.inf
"""The time at which a service is due that has no reason to run."""

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 1.0, 60.0
"""Seconds until a periodic service is tried again that the database has refused."""


class Service(ABC):
    """Something to do now and then. All times are monotonic seconds."""

    name: str
    """For log lines."""

    loop_handles_errors: ClassVar[bool] = True
    """Whether the loop handles the errors of the database that it raises, and leaves it alone while the control
    connection waits to be opened again. One that is not guarded asks nothing of the database, or does both itself."""

    needs_fresh_heartbeat: ClassVar[bool] = False
    """Whether the loop writes a heartbeat right before it."""

    refused: Callable[[Error], None] | None = None
    """Called with an error of the database that leaves the connection as good as it was; `None`: such an error closes
    the connection, as any other does."""

    @property
    @abstractmethod
    def due_at(self) -> float:
        """When to run it next; `NEVER`: there is no reason to."""

    @abstractmethod
    def run(self, now: float) -> None:
        """Do one piece of limited size. Afterwards `due_at` is in the future, unless there is more to do at once."""

    def succeeded(self) -> None:  # noqa: B027 (most have nothing to note)
        """Called after each run that raised no error."""

    def notified(self, payloads: Collection[str]) -> None:  # noqa: B027 (most wait for nothing)
        """Called with the payloads of the notifications that the control connection has received."""


class Periodic(Service):
    """A service whose `run` says when it is due again. After an error it waits, each time longer."""

    due_at = 0.0
    _failures = 0

    def run_again_in(self, seconds: float) -> None:
        """Be due so many seconds from now."""
        self.due_at = time.monotonic() + seconds

    @property
    def is_refused(self) -> bool:
        """Whether the database has refused it the last time."""
        return self._failures > 0

    def refused(self, error: BaseException) -> None:
        """Try again later, each time later still."""
        self._failures += 1
        longest = min(LONGEST_RETRY_DELAY, FIRST_RETRY_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
        self.run_again_in(delay)
        liveness_logs.service_failed(self.name, error, delay)

    def succeeded(self) -> None:
        """Log that it works again."""
        if self._failures:
            liveness_logs.service_back(self.name)
        self._failures = 0


class Timer(Service):
    """A callback of the loop's owner, at a time that the owner keeps. It asks nothing of the database."""

    loop_handles_errors = False

    def __init__(self, name: str, due_at: Callable[[], float], run: Callable[[], object]) -> None:
        """Afterwards `due_at` must say another time."""
        self.name = name
        self._due_at = due_at
        self._run = run

    @property
    def due_at(self) -> float:
        """The time that the owner keeps."""
        return self._due_at()

    def run(self, now: float) -> None:
        """Call it."""
        self._run()

"""A service: something that a supervisor does at intervals, in batches of limited size.

Invariant: any number of supervisors may do the same services at the same time.
"""

import random
import time
from abc import ABC, abstractmethod

from ..events import liveness_logs
from ..store import Store

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 1.0, 60.0
"""Seconds until a service is tried again that the database has refused."""


class Service(ABC):
    """Something to do now and then. `due_at` is in monotonic seconds."""

    name: str
    """For log lines."""

    makes_due: "Service | None" = None
    """Another service, which becomes due whenever this one is."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.due_at = 0.0
        self._failures = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return self.due_at <= time.monotonic()

    @property
    def is_refused(self) -> bool:
        """Whether the database has refused it the last time."""
        return self._failures > 0

    def do(self) -> None:
        """Do one batch, and note when the next one is due."""
        self.due_at = time.monotonic() + self.run()
        if self._failures:
            liveness_logs.service_back(self.name)
        self._failures = 0

    def failed(self, error: BaseException) -> None:
        """Note that the database has refused it, and try again later, each time later still."""
        self._failures += 1
        longest = min(LONGEST_RETRY_DELAY, FIRST_RETRY_DELAY * 2 ** min(self._failures, 10))
        delay = random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)
        self.due_at = time.monotonic() + delay
        liveness_logs.service_failed(self.name, error, delay)

    def hurry(self) -> None:  # noqa: B027 (most have nothing to hurry for)
        """Called when somebody has scheduled a job that is due soon."""

    @abstractmethod
    def run(self) -> float:
        """Do one batch; the seconds until the next one."""

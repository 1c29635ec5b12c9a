"""Looks for orphaned claims: jobs that this worker holds in the table, and does not know of.

A claim may be committed while its answer is lost with the connection, even after that: a statement that is under way
in a network that stalls may arrive later. A release, too, may have skipped a row that another transaction had locked.
As long as the worker lives, nobody else recovers such jobs.
"""

import time
from collections.abc import Callable

from django.db import Error

from ..runtime.service import NEVER, Service

DELAYS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When to check after the connection is back, in worker timeouts. With one of a minute: at once, after 1, 6 and 60 s.
Then once in a worker timeout."""

REFUSED_INTERVAL = 60.0
"""Seconds until the next look after one that the database has refused; the worker timeout, where that is longer."""


class OrphanCheck(Service):
    """The service that gives orphans back, for some time after something may have left one."""

    name = "orphan_check"
    due_at = NEVER

    def __init__(self, worker_timeout: float, release_orphans: Callable[[], object]) -> None:
        self._worker_timeout = worker_timeout
        self._release_orphans = release_orphans
        self._looks: list[float] = []  # those to come, in worker timeouts
        self._since = 0.0

    def expect(self, now: float) -> None:
        """Note that there may be such: the connection broke, or a job to be given back was locked."""
        self._looks = list(DELAYS)
        self.due_at = now

    def refused(self, error: Error) -> None:
        """Note that the database did not manage the look that was due, in the time that it has."""
        self.due_at = time.monotonic() + max(self._worker_timeout, REFUSED_INTERVAL)

    def run(self, now: float) -> None:
        """Look once."""
        self._release_orphans()
        if self._looks and self._looks.pop(0) == DELAYS[0]:
            self._since = now
        self.due_at = self._since + self._looks[0] * self._worker_timeout if self._looks else now + self._worker_timeout

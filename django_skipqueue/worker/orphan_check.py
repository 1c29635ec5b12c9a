"""Finds orphans: jobs that this worker holds by their rows, but not in its memory.

An orphan arises when a claim is committed but its answer is lost with the connection. The commit may come later than
the loss, if the network delayed the statement. An orphan also arises when a release skips a row that another
transaction has locked. As long as this worker lives, no other process recovers its orphans.
"""

import time
from collections.abc import Callable

from django.db import Error

from ..runtime.service import Service
from ..values.times import NEVER

DELAYS = (0.0, 1 / 60, 1 / 10, 1.0)
"""When to check after the connection is open again, in worker timeouts. With a worker timeout of 60 s: at once, and
after 1, 6 and 60 s. Then once in each worker timeout."""

REFUSED_INTERVAL = 60.0
"""Seconds until the next check after an error of the database; the worker timeout, if that is longer."""


class OrphanCheck(Service):
    """The service that releases orphans, once one may exist."""

    name = "orphan_check"
    due_at = NEVER

    def __init__(self, worker_timeout: float, release_orphans: Callable[[], object]) -> None:
        self._worker_timeout = worker_timeout
        self._release_orphans = release_orphans
        self._looks: list[float] = []  # the times of the next checks after `_since`, in worker timeouts
        self._since = 0.0

    def expect(self, now: float) -> None:
        """Note that an orphan may exist: the connection broke, or a job to be released was locked."""
        self._looks = list(DELAYS)
        self.due_at = now

    def refused(self, error: Error) -> None:
        self.due_at = time.monotonic() + max(self._worker_timeout, REFUSED_INTERVAL)

    def run(self, now: float) -> None:
        self._release_orphans()
        if self._looks and self._looks.pop(0) == DELAYS[0]:
            self._since = now
        self.due_at = self._since + self._looks[0] * self._worker_timeout if self._looks else now + self._worker_timeout

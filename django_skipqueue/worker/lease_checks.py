"""Checks whether the leases of a worker's jobs are still valid, and finds its orphans.

Invariant: a check covers the jobs that the worker also held at the previous check, and no others. So a short job costs
no statement, and a long one is checked within a second.

An orphan is a job that this worker holds by its row, but not in its memory. It arises when a claim is committed but its
answer is lost with the connection. The commit may come later than the loss, if the network delayed the statement. An
orphan also arises when a release skips a row that another transaction has locked. As long as this worker lives, no
other process recovers its orphans.
"""

import time
from collections.abc import Callable, Collection, Sequence

from django.db import Error

from ..values.records import NEVER, LeaseRef
from .loop import Service

CANCEL_CHECK_SECONDS = 0.4
"""Seconds between two checks."""


class CancelCheck(Service):
    """The service that drops and interrupts jobs that were cancelled, or taken from this worker by a recovery."""

    name = "cancel_check"

    def __init__(
        self, held: Callable[[], Collection[LeaseRef]], drop_lost: Callable[[Sequence[LeaseRef]], object]
    ) -> None:
        """`held` returns all leases of the worker. `drop_lost` drops those of the given jobs whose leases are lost."""
        self._held = held
        self._drop_lost = drop_lost
        self._next_look = 0.0
        self._seen: set[LeaseRef] = set()

    @property
    def due_at(self) -> float:
        return self._next_look if self._held() else NEVER

    def run(self, now: float) -> None:
        """Check the leases that the worker also held at the previous check."""
        self._next_look = now + CANCEL_CHECK_SECONDS
        held = self._held()
        old = self._seen.intersection(held)
        self._seen = set(held)
        if old:
            self._drop_lost(sorted(old))


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

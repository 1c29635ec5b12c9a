"""Lets scheduled jobs into their queues once they are due."""

import time

from ..events import logs
from ..store import Store
from ..store.notify import SOON
from .service import Service

DUE_CHECK = 1.0
"""Seconds between two looks at what is scheduled; a job that is due earlier is waited for."""

UNSCHEDULED_CHECK = SOON
"""Seconds until the next look where nothing is scheduled at all; a job that is due earlier is announced."""

LEAST_DUE_CHECK = 0.01
"""Shortest time between two looks, where notifications of scheduled jobs come one after the other."""


class Admit(Service):
    """Makes scheduled jobs claimable when they are due."""

    name = "admit"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._looked_at = float("-inf")

    def run(self) -> float:
        """See `Service.run`."""
        self._looked_at = time.monotonic()
        next_due = self.store.next_due()
        if next_due is None:
            return UNSCHEDULED_CHECK
        if next_due > 0:
            return min(next_due, DUE_CHECK)
        count = sum(self.store.admit().values())
        logs.admitted(count)
        return 0.0 if count else DUE_CHECK  # none: the job that is due is locked, say by its discard

    def hurry(self) -> None:
        """Look at once: a job was scheduled that is due soon. After a failure it waits as long as it was to."""
        if not self._failures:
            self.due_at = min(self.due_at, self._looked_at + LEAST_DUE_CHECK)

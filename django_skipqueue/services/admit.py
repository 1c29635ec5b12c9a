"""Lets jobs into their queues once their gates hold them no longer."""

from collections.abc import Collection

from ..runtime.service import Periodic
from ..store import Store
from ..store.notify import SOON

DUE_CHECK = 1.0
"""Seconds between two looks at what is scheduled; a job that is due earlier is waited for."""

UNSCHEDULED_CHECK = SOON
"""Seconds until the next look where nothing is scheduled at all; a job that is due earlier is announced."""

LEAST_DUE_CHECK = 0.01
"""Shortest time between two looks, where notifications of scheduled jobs come one after the other."""


class Admit(Periodic):
    """Calls the gates when there may be a job to admit: for the time gate, when the next one is due."""

    name = "admit"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked_at = float("-inf")

    def run(self, now: float) -> None:
        """Admit one batch, if there may be a job to admit."""
        self._looked_at = now
        next_due = self._store.next_due()
        if next_due is None:
            interval = UNSCHEDULED_CHECK
        elif next_due > 0:
            interval = min(next_due, DUE_CHECK)
        elif self._store.admit():
            interval = 0.0
        else:  # the job that is due is locked, say by its discard
            interval = DUE_CHECK
        self.run_again_in(interval)

    def notified(self, payloads: Collection[str]) -> None:
        """Look at once: a job was scheduled that is due soon. After an error it waits as long as it was to."""
        if not self.is_refused:
            self.due_at = min(self.due_at, self._looked_at + LEAST_DUE_CHECK)

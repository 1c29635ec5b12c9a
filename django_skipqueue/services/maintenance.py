"""The services of the queue, alike: each is due at intervals, does one limited batch, and says when it is due again.

Invariant: every service is idempotent and skips rows that others have locked, so that any number of supervisors may do
the same ones.
"""

import random
import time
from abc import ABC, abstractmethod

from ..conf import settings
from ..events import liveness_logs, logs
from ..store import Store
from ..store.notify import SOON
from .pruning import Pruner

DUE_CHECK = 1.0
"""Seconds between two looks at what is scheduled; a job that is due earlier is waited for."""

UNSCHEDULED_CHECK = SOON
"""Seconds until the next look where nothing is scheduled at all; a job that is due earlier is announced."""

LEAST_DUE_CHECK = 0.01
"""Shortest time between two looks, where notifications of scheduled jobs come one after the other."""

PRUNE_INTERVAL = 30.0
"""Seconds between two looks for jobs to delete; with a retention shorter than that, one second."""

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 1.0, 60.0
"""Seconds until a service is tried again that the database has refused."""


class Service(ABC):
    """Something to do now and then. `due_at` is in monotonic seconds."""

    name: str
    """For log lines."""

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

    @abstractmethod
    def run(self) -> float:
        """Do one batch; the seconds until the next one."""


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


class Prune(Service):
    """Deletes finished jobs past their retention."""

    name = "prune"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._pruner = Pruner(store)

    def run(self) -> float:
        """See `Service.run`."""
        counts = self._pruner.batch()
        if counts:
            logs.pruned(counts)
        if self._pruner.has_more:
            return 0.0
        kept = [settings.retention_of(status) for status in ("completed", "discarded", "failed")]
        shortest = min(
            (retention.total_seconds() for retention in kept if retention is not None), default=PRUNE_INTERVAL
        )
        return PRUNE_INTERVAL if shortest >= PRUNE_INTERVAL else 1.0

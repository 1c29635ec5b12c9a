"""The chores of the queue, alike: each is due at intervals, does one limited batch, and says when it is due again.

Invariant: every chore is idempotent and skips rows that others have locked, so that any number of supervisors may do
the same ones.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from .. import logs
from ..conf import settings
from ..managers import BATCH
from ..models import Job, Worker
from ..records import RecoveredJob

DUE_CHECK = 1.0
"""Seconds between two looks at what is scheduled; a job that is due earlier is waited for."""

UNSCHEDULED_CHECK = 2.0
"""Seconds until the next look where nothing is scheduled at all."""

PRUNE_INTERVAL = 30.0
"""Seconds between two looks for jobs to delete; with a retention shorter than that, one second."""

FORGET_INTERVAL = 60.0
"""Seconds between two looks for the rows of workers that died with their machine."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""


class Chore(ABC):
    """Something to do now and then. `due_at` is in monotonic seconds."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.due_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return self.due_at <= time.monotonic()

    def do(self) -> None:
        """Do one batch, and note when the next one is due."""
        self.due_at = time.monotonic() + self.run()

    @abstractmethod
    def run(self) -> float:
        """Do one batch; the seconds until the next one."""


class Promote(Chore):
    """Makes scheduled jobs claimable when they are due."""

    def run(self) -> float:
        """See `Chore.run`."""
        jobs = Job.objects.using(self.database)
        next_due = jobs.next_due()
        if next_due is None:
            return UNSCHEDULED_CHECK
        if next_due > 0:
            return min(next_due, DUE_CHECK)
        count = sum(jobs.promote().values())
        logs.promoted(count)
        return 0.0 if count else DUE_CHECK  # none: the job that is due is locked, say by its discard


class Recover(Chore):
    """Takes back the jobs of workers that were not heard of within their lease.

    Where it could not look for a while itself, others may have been as silent for the same reason: the database was
    gone, or locked. Then it judges nobody until each had a lease to be heard in.
    """

    def __init__(self, database: str, *, lease: float, tell: Callable[[list[RecoveredJob]], None]) -> None:
        super().__init__(database)
        self._lease = lease
        self._tell = tell
        self._looked_at = time.monotonic()
        self._judges_from = 0.0

    def run(self) -> float:
        """See `Chore.run`."""
        now = time.monotonic()
        if now - self._looked_at > self._lease / 2:
            self._judges_from = now + self._lease
        self._looked_at = now
        return min(self._lease / 4, 5.0) if now < self._judges_from else self._recover()

    def _recover(self) -> float:
        recovered = Job.objects.using(self.database).recover(lease=self._lease)
        self._tell(recovered)
        if len(recovered) == BATCH:
            return 0.0
        return min(self._lease / 4, 5.0)


class Forget(Chore):
    """Removes the rows of workers that died with their machine, once nothing of theirs is left to recover."""

    def __init__(self, database: str, *, lease: float) -> None:
        super().__init__(database)
        self._lease = lease

    def run(self) -> float:
        """See `Chore.run`."""
        Worker.objects.using(self.database).forget(age=max(KEEP_DEAD_WORKERS, self._lease))
        return FORGET_INTERVAL


class Prune(Chore):
    """Deletes finished jobs past their retention."""

    def run(self) -> float:
        """See `Chore.run`."""
        counts = Job.objects.using(self.database).prune()
        if counts:
            logs.pruned(counts)
        if sum(counts.values()) == BATCH:
            return 0.0
        kept = [settings.retention_of(status) for status in ("completed", "discarded", "failed")]
        shortest = min(
            (retention.total_seconds() for retention in kept if retention is not None), default=PRUNE_INTERVAL
        )
        return PRUNE_INTERVAL if shortest >= PRUNE_INTERVAL else 1.0

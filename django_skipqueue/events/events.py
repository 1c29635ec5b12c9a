"""The events: what happens to jobs and workers, each as a frozen value that its sinks get.

Those about jobs come in batches, as the database changes jobs: one value for all that one statement has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..values.records import Attempt, ClaimedJob, RecoveredJob


@dataclass(frozen=True)
class Event:
    """What all have in common."""

    @property
    def size(self) -> int:
        """How many things have happened."""
        return 1


# Jobs


@dataclass(frozen=True)
class JobsDeferred(Event):
    """Jobs were inserted. Workers see them once the caller's transaction commits."""

    task: str
    queue_name: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsAdmitted(Event):
    """Jobs were let into their queues: their time has come."""

    database: str
    """The alias of the database that holds them."""
    counts: Mapping[str, int]
    """How many, by the name of the queue."""


@dataclass(frozen=True)
class JobsReleased(Event):
    """Jobs that were claimed were given back, at no attempt."""

    database: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsRecovered(Event):
    """Jobs were taken back from workers that are gone."""

    jobs: Sequence[RecoveredJob]

    @property
    def size(self) -> int:
        """See `Event.size`."""
        return len(self.jobs)


@dataclass(frozen=True)
class JobsOperated(Event):
    """Somebody has changed jobs by hand."""

    database: str
    verb: str
    """`retry`, `discard`, `cancel`, `run_now` or `postpone`."""
    job_ids: Sequence[int]
    """Of the jobs that were changed."""
    by: str
    reason: str


@dataclass(frozen=True)
class JobsPruned(Event):
    """Finished jobs were deleted."""

    database: str
    counts: Mapping[str, int]
    """How many, by their status."""


# Attempts


@dataclass(frozen=True)
class AttemptStarted(Event):
    """An attempt begins."""

    job: ClaimedJob
    worker: str
    """The name of its worker."""
    wait_ms: float
    """How long the job was due before."""


@dataclass(frozen=True)
class AttemptsEnded(Event):
    """Attempts have ended, and the database has answered for them. Each is of one of the kinds below."""

    attempts: Sequence[Attempt]

    @property
    def size(self) -> int:
        """See `Event.size`."""
        return len(self.attempts)


class AttemptsCompleted(AttemptsEnded):
    """Their tasks returned."""


class AttemptsRetrying(AttemptsEnded):
    """They failed, or asked for it, and their jobs will run again."""


class AttemptsFailed(AttemptsEnded):
    """They failed, and were the last of their jobs."""


class AttemptsDiscarded(AttemptsEnded):
    """Their tasks raised `Discard`, or one of their `discard_on` errors."""


class AttemptsCancelled(AttemptsEnded):
    """Their jobs were cancelled while they ran."""


class LeasesLost(AttemptsEnded):
    """Their outcomes came too late: somebody took the jobs from the worker meanwhile."""


# Workers


@dataclass(frozen=True)
class WorkerStarted(Event):
    """A worker process is about to claim its first job."""

    worker: str
    """Its name."""
    worker_id: str
    queue_names: Sequence[str]
    concurrency: int


@dataclass(frozen=True)
class WorkerStopped(Event):
    """A worker process ends. What still runs is released after that."""

    worker: str
    worker_id: str
    jobs_done: int
    """How many attempts it has settled."""


# The database


@dataclass(frozen=True)
class OutcomeRefused(Event):
    """PostgreSQL takes no outcome at all for the row of this job, which somebody has written by hand."""

    job_id: int
    error: BaseException


@dataclass(frozen=True)
class NotifyFailed(Event):
    """Workers were not notified of a job in this queue; they find it when they poll."""

    queue_name: str
    error: BaseException

"""The events: frozen values that describe what happened to jobs and workers. The sinks get them.

An event about jobs covers a batch: all jobs that one statement has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..values.records import Attempt, ClaimedJob, RecoveredJob


@dataclass(frozen=True)
class Event:
    @property
    def size(self) -> int:
        """The number of things that happened, such as ended attempts in a batch."""
        return 1


# Jobs


@dataclass(frozen=True)
class JobsDeferred(Event):
    """Jobs were inserted. Workers see them once the caller's transaction commits."""

    database: str
    task: str
    queue_name: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsAdmitted(Event):
    """Jobs were admitted to their queues: they are due, or a permit of their key is free."""

    database: str
    """The alias of the database that holds them."""
    counts: Mapping[str, int]
    """The number of jobs, by the name of the queue."""


@dataclass(frozen=True)
class JobsReleased(Event):
    """Claimed jobs were put back into their queues. No attempt is charged."""

    database: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsRecovered(Event):
    database: str
    jobs: Sequence[RecoveredJob]

    @property
    def size(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True)
class JobsOperated(Event):
    database: str
    verb: str
    """`retry`, `discard`, `cancel`, `run_now`, `postpone`, `reschedule`, `change_queue` or `change_priority`."""
    job_ids: Sequence[int]
    """The ids of the changed jobs."""
    by: str
    reason: str


@dataclass(frozen=True)
class JobsPruned(Event):
    database: str
    counts: Mapping[str, int]
    """The number of jobs, by status."""


# Attempts


@dataclass(frozen=True)
class AttemptStarted(Event):
    job: ClaimedJob
    worker: str
    """The name of the worker."""
    wait_ms: float
    """Milliseconds between the due time of the job and the start."""
    database: str = "default"
    """The alias of the database with the job."""


@dataclass(frozen=True)
class AttemptsEnded(Event):
    """Attempts have ended, and the database has accepted or rejected their outcomes. The subclasses tell which."""

    attempts: Sequence[Attempt]

    @property
    def size(self) -> int:
        return len(self.attempts)


class AttemptsCompleted(AttemptsEnded):
    """The tasks returned."""


class AttemptsRetrying(AttemptsEnded):
    """The attempts failed, or raised `Retry` or `Snooze`, and their jobs will run again."""


class AttemptsFailed(AttemptsEnded):
    """The attempts failed, and their jobs will not be retried."""


class AttemptsDiscarded(AttemptsEnded):
    """The tasks raised `Discard`, or one of their `discard_on` errors."""


class AttemptsCancelled(AttemptsEnded):
    """The jobs were cancelled while they ran."""


class LeasesLost(AttemptsEnded):
    """The outcomes were not written, because the jobs were taken from the worker before."""


@dataclass(frozen=True)
class OutcomesDropped(Event):
    """Outcomes that came from a broker were not written, and no job was taken from a worker."""

    attempts: Sequence[Attempt]
    reason: str

    @property
    def size(self) -> int:
        return len(self.attempts)


# Workers


@dataclass(frozen=True)
class WorkerStarted(Event):
    """A worker process is about to claim its first job."""

    worker: str
    """The name of the worker."""
    worker_id: str
    queue_names: Sequence[str]
    concurrency: int


@dataclass(frozen=True)
class WorkerStopped(Event):
    """A worker process ends. Jobs that still run are released after this event."""

    worker: str
    worker_id: str
    jobs_done: int
    """The number of attempts that the worker has settled."""


# Queues


@dataclass(frozen=True)
class QueuePaused(Event):
    database: str
    queue_name: str
    until: datetime | None
    """When the pause ends by itself; `None`: when somebody resumes the queue."""
    by: str
    reason: str


@dataclass(frozen=True)
class QueueResumed(Event):
    """Somebody resumed a queue. A pause that ends by itself sends no event: no process does anything then."""

    database: str
    queue_name: str
    by: str


# The database


@dataclass(frozen=True)
class OutcomeRefused(Event):
    """PostgreSQL refuses every outcome for the row of this job, because somebody has changed the row by hand."""

    job_id: int
    error: BaseException


@dataclass(frozen=True)
class NotifyFailed(Event):
    """Workers were not notified of a job in this queue; they will find it when they poll."""

    database: str
    queue_name: str
    error: BaseException

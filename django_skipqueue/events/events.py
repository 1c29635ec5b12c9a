"""The event classes. An event describes what happened to jobs or workers, such as attempts that completed.

An event is given to all sinks, such as the log and Django's signals. An event about jobs is about all jobs
that the same statement has changed. The event's class says which Django signal is sent, and writes the log lines.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.dispatch import Signal

from .. import signals
from ..values.records import Attempt, ClaimedJob, RecoveredJob, worker_name
from . import logs
from .log_format import in_a_line, in_words

SignalArguments = Iterator[tuple[str, dict[str, Any]]]
"""The sender and the arguments of each Django signal that is sent for an event."""


@dataclass(frozen=True)
class Event:
    level: ClassVar[int | None] = None
    """The lowest level of the event's log lines; `None` if the event is not logged."""
    signal: ClassVar[Signal | None] = None
    """The Django signal that is sent for the event; `None` for no signal."""
    sender: ClassVar[str] = "database"
    """The name of the field that holds the signal's sender. The other fields are the signal's arguments."""

    @property
    def size(self) -> int:
        """The number of things that happened, such as ended attempts in a batch."""
        return 1

    def write_lines(self) -> None:
        """Write the log lines of this event."""

    def signal_arguments(self) -> SignalArguments:
        """Yield the sender and the arguments for each time that the signal is sent."""
        values = dict(vars(self))
        yield values.pop(self.sender), values


# Jobs


@dataclass(frozen=True)
class JobsDeferred(Event):
    """Jobs were inserted. Workers see the jobs once the caller's transaction commits."""

    signal, sender = signals.job_deferred, "task"

    database: str
    task: str
    queue_name: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsAdmitted(Event):
    """Jobs were admitted to their queues, because they are due, or because a limit has room for them."""

    level, signal = logging.DEBUG, signals.jobs_admitted

    database: str
    """The alias of the database that holds the jobs."""
    counts: Mapping[str, int]
    """The number of jobs, by the name of the queue."""

    def write_lines(self) -> None:
        logs.write(logging.DEBUG, "jobs_due", {"count": sum(self.counts.values())})


@dataclass(frozen=True)
class JobsReleased(Event):
    """Claimed jobs were put back into their queues. Their attempts do not count."""

    signal = signals.jobs_released

    database: str
    job_ids: Sequence[int]


@dataclass(frozen=True)
class JobsRecovered(Event):
    level, signal = logging.WARNING, signals.job_recovered

    database: str
    jobs: Sequence[RecoveredJob]

    @property
    def size(self) -> int:
        return len(self.jobs)

    def write_lines(self) -> None:
        for job in self.jobs:
            name = worker_name(job.locked_by)
            shown = {
                "task": job.task,
                "id": job.id,
                "attempt": job.attempt,
                "worker": name,
                "claimed": _time_of_day(job.locked_at),
                "now": job.status,
            }
            extra = logs.job_extra(job) | {"worker_id": job.locked_by, "worker_name": name}
            level = logging.ERROR if job.status == "failed" else logging.WARNING
            logs.write(level, "job_recovered", shown, extra=extra)

    def signal_arguments(self) -> SignalArguments:
        for job in self.jobs:
            yield job.task, {"database": self.database, "job": job}


def _time_of_day(moment: datetime) -> str:
    """Format a time as local time, with the date if it is not today."""
    local = moment.astimezone()
    return f"{local:%H:%M:%S}" if local.date() == datetime.now().astimezone().date() else f"{local:%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True)
class JobsOperated(Event):
    signal, sender = signals.jobs_operated, "verb"

    database: str
    verb: str
    """`retry`, `discard`, `cancel`, `run_now`, `postpone`, `reschedule`, `change_queue` or `change_priority`."""
    job_ids: Sequence[int]
    """The ids of the changed jobs."""
    by: str
    reason: str


@dataclass(frozen=True)
class JobsPruned(Event):
    level, signal = logging.DEBUG, signals.jobs_pruned

    database: str
    counts: Mapping[str, int]
    """The number of jobs, by status."""

    def write_lines(self) -> None:
        logs.write(logging.DEBUG, "jobs_pruned", dict(self.counts))


# Attempts


@dataclass(frozen=True)
class AttemptStarted(Event):
    level, signal = logging.DEBUG, signals.job_started

    job: ClaimedJob
    worker: str
    """The name of the worker."""
    wait_ms: float
    """Milliseconds between the due time of the job and the start."""
    database: str = "default"
    """The alias of the database with the job."""

    def write_lines(self) -> None:
        waited = in_words(self.wait_ms / 1000)
        shown = {"task": self.job.task, "id": self.job.id, "attempt": logs.number_of(self.job), "waited": waited}
        extra = logs.job_extra(self.job) | {"wait_ms": self.wait_ms, "worker_name": self.worker}
        logs.write(logging.DEBUG, "job_started", shown, extra=extra)

    def signal_arguments(self) -> SignalArguments:
        yield self.job.task, dict(vars(self))


@dataclass(frozen=True)
class AttemptsEnded(Event):
    """Attempts have ended, and the database has accepted or rejected their outcomes, as the subclass says."""

    level: ClassVar[int]
    line: ClassVar[str]
    """The name of the event in each log line."""

    attempts: Sequence[Attempt]

    @property
    def size(self) -> int:
        return len(self.attempts)

    def write_lines(self) -> None:
        for attempt in self.attempts:
            logs.write_about_attempt(self.level, self.line, attempt)

    def signal_arguments(self) -> SignalArguments:
        for attempt in self.attempts:
            yield attempt.job.task, {"attempt": attempt}


class AttemptsCompleted(AttemptsEnded):
    """The tasks returned."""

    level, line, signal = logging.INFO, "job_completed", signals.job_completed

    def write_lines(self) -> None:
        """Write a line for each completed job, or only one line for many jobs, unless the level is DEBUG.

        Under load, writing a line takes twice as long as running a short job, and nobody can read thousands of lines.
        """
        if len(self.attempts) <= LARGE_BATCH or logs.logger.isEnabledFor(logging.DEBUG):
            super().write_lines()
            return
        counts_by_task = Counter(attempt.job.task for attempt in self.attempts)
        tasks = ", ".join(f"{count:,} {task}" for task, count in counts_by_task.most_common(5))
        shown = {"count": len(self.attempts), "tasks": tasks}
        logs.write(logging.INFO, "jobs_completed", shown, extra={"jobs": len(self.attempts)})


LARGE_BATCH = 50
"""If more jobs than this are completed in one round trip, they share one log line."""


class AttemptsRetrying(AttemptsEnded):
    """The attempts failed, or raised `Retry` or `Snooze`, and their jobs will run again."""

    level, line, signal = logging.INFO, "job_retrying", signals.job_retrying

    def write_lines(self) -> None:
        for attempt in self.attempts:
            level = logging.WARNING if attempt.outcome.last_error else logging.INFO
            retry_in = "held" if attempt.outcome.is_held else in_words(attempt.outcome.delay)
            logs.write_about_attempt(level, self.line, attempt, retry_in=retry_in)


class AttemptsFailed(AttemptsEnded):
    """The attempts failed, and their jobs will not be retried."""

    level, line, signal = logging.ERROR, "job_failed", signals.job_failed


class AttemptsDiscarded(AttemptsEnded):
    """The tasks raised `Discard`, or one of their `discard_on` errors."""

    level, line, signal = logging.WARNING, "job_discarded", signals.job_discarded


class AttemptsCancelled(AttemptsEnded):
    """The jobs were cancelled while they ran."""

    level, line, signal = logging.INFO, "job_cancelled", signals.job_cancelled


class LeasesLost(AttemptsEnded):
    """The outcomes were not written, because the jobs had been taken from the worker."""

    level, line, signal = logging.WARNING, "lease_lost", signals.lease_lost

    def write_lines(self) -> None:
        for attempt in self.attempts:
            logs.write_about_attempt(self.level, self.line, attempt, not_written=attempt.outcome.status)


@dataclass(frozen=True)
class OutcomesDropped(Event):
    """Outcomes that an external worker reported were not written, for a harmless reason such as a repeated message."""

    level = logging.INFO

    attempts: Sequence[Attempt]
    reason: str
    """Why the outcomes were not written."""

    @property
    def size(self) -> int:
        return len(self.attempts)

    def write_lines(self) -> None:
        for attempt in self.attempts:
            not_written, reason = attempt.outcome.status, self.reason
            logs.write_about_attempt(self.level, "outcome_dropped", attempt, not_written=not_written, reason=reason)


# Workers


@dataclass(frozen=True)
class WorkerStarted(Event):
    """A worker process is about to claim its first job."""

    level, signal, sender = logging.INFO, signals.worker_started, "worker"

    worker: str
    """The name of the worker."""
    worker_id: str
    queue_names: Sequence[str]
    concurrency: int

    def write_lines(self) -> None:
        extra = {"worker_id": self.worker_id, "worker_name": self.worker}
        logs.write(logging.INFO, "worker_started", {"worker": self.worker}, extra=extra)


@dataclass(frozen=True)
class WorkerStopped(Event):
    """A worker process ends. Jobs that still run are released after this event."""

    level, signal, sender = logging.INFO, signals.worker_stopped, "worker"

    worker: str
    worker_id: str
    jobs_done: int
    """The number of attempts that the worker has settled."""

    def write_lines(self) -> None:
        extra = {"worker_id": self.worker_id, "worker_name": self.worker}
        shown = {"worker": self.worker, "attempts": self.jobs_done}
        logs.write(logging.INFO, "worker_stopped", shown, extra=extra)


# Queues


@dataclass(frozen=True)
class QueuePaused(Event):
    level, signal, sender = logging.WARNING, signals.queue_paused, "queue_name"

    database: str
    queue_name: str
    until: datetime | None
    """When the pause ends by itself; `None` if it lasts until somebody resumes the queue."""
    by: str
    reason: str

    def write_lines(self) -> None:
        until = self.until and self.until.isoformat(" ", "seconds")
        logs.write_about_queue("queue_paused", self.queue_name, until=until, by=self.by, reason=self.reason)


@dataclass(frozen=True)
class QueueResumed(Event):
    """Somebody resumed a queue. A pause that ends by itself sends no event, because no process does anything then."""

    level, signal, sender = logging.INFO, signals.queue_resumed, "queue_name"

    database: str
    queue_name: str
    by: str

    def write_lines(self) -> None:
        logs.write_about_queue("queue_resumed", self.queue_name, level=logging.INFO, by=self.by)


# The database


@dataclass(frozen=True)
class OutcomeRefused(Event):
    """PostgreSQL refuses to write any outcome to this job's row, because somebody has changed the row by hand."""

    level = logging.ERROR

    job_id: int
    error: BaseException

    def write_lines(self) -> None:
        hint = "its row cannot be updated; fix or delete it"
        shown = {"id": self.job_id, "error": in_a_line(self.error), "hint": hint}
        logs.write(logging.ERROR, "outcome_refused", shown, extra={"job_id": self.job_id})


@dataclass(frozen=True)
class NotifyFailed(Event):
    """Workers could not be notified of a new job in this queue. They find the job when they next poll."""

    level = logging.WARNING

    database: str
    queue_name: str
    error: BaseException

    def write_lines(self) -> None:
        logs.write_about_queue("notify_failed", self.queue_name, error=repr(self.error))

"""Counts what happens in one process until it is written: attempts and claims of each task, and the causes of failures.

Invariant: the counts never take more memory than for `MOST_KEYS` tasks and `MOST_CAUSES` causes of failures.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsEnded,
    AttemptsFailed,
    AttemptsRetrying,
    Event,
    JobsRecovered,
    LeasesLost,
)
from ...values.counting import added, of
from ...values.records import Attempt, Cause, ClaimedJob, RecoveredJob


@dataclass(slots=True)
class Counts:
    """Counts of attempts by outcome, of claims, and histograms of their durations. `RollUp` has the same columns."""

    completed: int = 0
    retried: int = 0
    snoozed: int = 0
    failed: int = 0
    discarded: int = 0
    recovered: int = 0
    lost: int = 0
    waited: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0
    claims: int = 0
    claim_times: list[int] = field(default_factory=list)
    claim_seconds: float = 0.0

    def add(self, other: "Counts") -> None:
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, added(mine, theirs) if isinstance(mine, list) else mine + theirs)


Key = tuple[int, str, str]
"""A minute since the epoch, a queue and a task."""

SPANS = 0, 60, 3600
"""The lengths in seconds of the times that a row covers; 0: since the beginning."""


def start_of(span: int, minute: int) -> int:
    """The start of the span in which a minute lies, in seconds since the epoch."""
    return minute * 60 // span * span if span else 0


def rows_of_counts(counted: Mapping[Key, Counts]) -> Iterator[dict[str, Any]]:
    """A row for each span and level: the task in its queue, all tasks of the queue, and all queues."""
    total: dict[tuple[int, str, str, int], Counts] = {}
    for (minute, queue_name, task), counts in counted.items():
        for span in SPANS:
            for level in {(queue_name, task), (queue_name, ""), ("", "")}:
                total.setdefault((span, *level, start_of(span, minute)), Counts()).add(counts)
    for (span, queue_name, task, starts_at), counts in total.items():
        yield {"span": span, "queue_name": queue_name, "task": task, "starts_at": starts_at, **asdict(counts)}


@dataclass(slots=True)
class Failures:
    """Times are seconds since the epoch."""

    number: int
    first_at: float
    last_at: float
    last_line: int | None
    last_job_id: int

    def add(self, other: "Failures") -> None:
        if other.last_at >= self.last_at:
            self.last_line, self.last_job_id = other.last_line, other.last_job_id
        self.number += other.number
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)


def rows_of_failures(counted: Mapping[tuple[int, Cause], Failures]) -> Iterator[dict[str, Any]]:
    total: dict[tuple[int, Cause, int], Failures] = {}
    for (minute, cause), failures in counted.items():
        for span in SPANS:
            key = (span, cause, start_of(span, minute))
            if key in total:
                total[key].add(failures)
            else:
                total[key] = replace(failures)
    for (span, cause, starts_at), failures in total.items():
        yield {"span": span, **cause._asdict(), "starts_at": starts_at, **asdict(failures)}


MOST_KEYS = 1_000
"""Pairs of a queue and a task that are counted apart between two writes."""

MOST_CAUSES = 200
"""Causes of failures that are counted apart between two writes."""

OTHER = "(other)"
"""The queue, the task and the cause of all that is above these limits."""

WORKER_DIED = "django_skipqueue.exceptions.WorkerDied"
"""The exception in the entry that a recovery appends to the errors of a job."""

COLUMNS: dict[type[AttemptsEnded], str] = {
    AttemptsCompleted: "completed",
    AttemptsRetrying: "retried",
    AttemptsFailed: "failed",
    AttemptsDiscarded: "discarded",
    AttemptsCancelled: "discarded",
    LeasesLost: "lost",
}
"""The column that counts the attempts of each kind of event."""


class Tally:
    """Used by the thread of a control loop."""

    def __init__(self) -> None:
        self._counts: dict[Key, Counts] = {}
        self._failures: dict[tuple[int, Cause], Failures] = {}

    @property
    def is_empty(self) -> bool:
        return not self._counts

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Count attempts, after the database has accepted or rejected their outcomes."""
        snoozed = [attempt for attempt in attempts if attempt.outcome.refund] if kind is AttemptsRetrying else []
        self._add("snoozed", snoozed)
        self._add(
            COLUMNS[kind], [attempt for attempt in attempts if not attempt.outcome.refund] if snoozed else attempts
        )
        if kind is not AttemptsCompleted:
            for attempt in attempts:
                if attempt.outcome.error:
                    self._failed(attempt, attempt.outcome.error)

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count a claim that returned these jobs, in claim order. It took until the last one was updated."""
        if jobs:
            seconds = jobs[-1].claim_seconds
            counted = self._of(int(jobs[0].locked_at // 60), "", "")
            counted.claims += 1
            counted.claim_seconds += seconds
            counted.claim_times = added(counted.claim_times, of([seconds]))

    def recovered(self, jobs: Sequence[RecoveredJob]) -> None:
        """Count jobs that were recovered from dead workers; those among them that failed count as failed as well."""
        for job in jobs:
            at = job.recovered_at.timestamp()
            counted = self._of(int(at // 60), job.queue_name, job.task)
            counted.recovered += 1
            counted.failed += job.status == "failed"
            self._cause(Cause(job.task, WORKER_DIED, ""), Failures(1, at, at, None, job.id))

    def sent(self, event: Event) -> None:
        """Count the jobs of the event, if it is about recovered jobs."""
        if isinstance(event, JobsRecovered):
            self.recovered(event.jobs)

    def take(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What was counted since the last time, as rows for `roll_up`."""
        counted, self._counts = self._counts, {}
        causes, self._failures = self._failures, {}
        return list(rows_of_counts(counted)), list(rows_of_failures(causes))

    def _add(self, column: str, attempts: Sequence[Attempt]) -> None:
        durations: defaultdict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        queue_name = task = ""
        for job, _, started, ended, _, _, _ in attempts:
            if job.task != task or job.queue_name != queue_name:  # most attempts are of the same task as the one before
                queue_name, task = job.queue_name, job.task
                waited, ran = durations[queue_name, task]
            waited.append(job.locked_at - job.run_after + started - (job.claimed_at or started))
            ran.append(ended - started)
        for key, (waited, ran) in durations.items():
            counted = self._of(int(_ended_at(attempts[-1]) // 60), *key)
            setattr(counted, column, getattr(counted, column) + len(ran))
            counted.waited = added(counted.waited, of(waited))
            counted.ran = added(counted.ran, of(ran))
            counted.waited_seconds += sum(waited)
            counted.ran_seconds += sum(ran)

    def _of(self, minute: int, queue_name: str, task: str) -> Counts:
        key = minute, queue_name, task
        if key not in self._counts:
            if len(self._counts) >= MOST_KEYS:
                key = minute, OTHER, OTHER
            return self._counts.setdefault(key, Counts())
        return self._counts[key]

    def _failed(self, attempt: Attempt, error: Mapping[str, Any]) -> None:
        at = _ended_at(attempt)
        cause = Cause(attempt.job.task, error["exception"], error.get("place", ""))
        self._cause(cause, Failures(1, at, at, error.get("line"), attempt.job.id))

    def _cause(self, cause: Cause, failures: Failures) -> None:
        key = int(failures.last_at // 60), cause
        if key in self._failures:
            self._failures[key].add(failures)
            return
        if len(self._failures) >= MOST_CAUSES:
            key = key[0], Cause(OTHER, OTHER, "")
        known = self._failures.setdefault(key, failures)
        if known is not failures:
            known.add(failures)


def _ended_at(attempt: Attempt) -> float:
    """The end of the attempt by the database's clock, in seconds since the epoch."""
    job = attempt.job
    return job.locked_at + attempt.ended - (job.claimed_at or attempt.ended)

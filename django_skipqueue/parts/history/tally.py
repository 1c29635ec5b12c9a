"""Counts what happens in one process until it is written, and the jobs that were enqueued.

Invariant: the counts never take more memory than for `MOST_KEYS` tasks and `MOST_CAUSES` causes of failures.

The caller of `.defer()` counts nothing: a row that all callers change would make them wait for each other. A supervisor
reads the new rows of the job table instead, by their ids.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from ...queue.store import Store
from ...values.counting import added, of
from ...values.records import Attempt, Cause, ClaimedJob, RecoveredJob
from ...worker.loop import Periodic
from . import counts
from . import failure_counts as failures
from .counts import Counts
from .failure_counts import Failures
from .rollups import count_enqueued, start_counting

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
        self._counts: dict[counts.Key, Counts] = {}
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
        return list(counts.rows(counted)), list(failures.rows(causes))

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


COUNT_INTERVAL = 10.0
"""Seconds between two counts, over all supervisors. A job is counted two to three intervals after its commit."""

GRACE = 6 * COUNT_INTERVAL
"""Seconds after its retention for which a supervisor keeps a job, so that it is counted among the enqueued ones before:
a job with a retention of nothing would otherwise be deleted within a second, and is counted after three intervals."""


class CountEnqueued(Periodic):
    name = "count_enqueued"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_started = False

    def run(self, now: float) -> None:
        """Count one batch, unless another supervisor has."""
        if not self._has_started:
            start_counting(self._store)
            self._has_started = True
        has_more = count_enqueued(self._store, interval=COUNT_INTERVAL - 1.0)
        self.run_again_in(0.0 if has_more else COUNT_INTERVAL)

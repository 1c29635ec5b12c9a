"""The row of a job and the event of an attempt show when the attempt began, and how long it took."""

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.signals import job_cancelled, job_completed, job_started
from django_skipqueue.values.outcomes import COMPLETED, Outcome, Settlement, error_entry
from django_skipqueue.values.records import Attempt
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ..app import jobs, worker_jobs
from ..app.rows import make_job, settle_and_claim, state
from ..harness.threads import WorkerThread

store = Store("default")

pytestmark = pytest.mark.django_db(transaction=True)

TOLERANCE = timedelta(microseconds=2)


@pytest.fixture
def attempts() -> Iterator[dict[int, Attempt]]:
    """The attempts of completed or cancelled jobs, by the ids of the jobs."""
    attempts_by_id: dict[int, Attempt] = {}

    def receive(attempt: Attempt, **_: Any) -> None:
        attempts_by_id[attempt.job.id] = attempt

    for signal in (job_completed, job_cancelled):
        signal.connect(receive)
    yield attempts_by_id
    for signal in (job_completed, job_cancelled):
        signal.disconnect(receive)


def duration_of(job: Job) -> timedelta:
    """The time between the start and the end in the row of this job."""
    job_row = state(job)
    duration: timedelta = job_row["finished_at"] - job_row["started_at"]
    return duration


class TestTimesWrittenBySettle:
    def test_the_row_has_the_times_at_which_the_attempt_began_and_ended(self) -> None:
        job, now = make_job("running"), time.monotonic()
        claimed_at = state(job)["locked_at"]
        store.settle([Settlement(job.pk, job.lease, COMPLETED, now - 3600, now - 60)])
        assert abs(duration_of(job) - timedelta(minutes=59)) <= TOLERANCE
        # It ended a minute ago.
        assert claimed_at - TOLERANCE <= state(job)["finished_at"] + timedelta(seconds=60)

    def test_the_error_entry_has_the_time_of_the_failure_although_it_is_saved_later(self) -> None:
        job, now = make_job("running"), time.monotonic()
        entry = error_entry(ValueError("no"), attempt=1, worker="w", duration_ms=5.0)
        store.settle([Settlement(job.pk, job.lease, Outcome("failed", error=entry), now - 3600, now - 60)])
        job_row = Job.objects.get()
        assert datetime.fromisoformat(job_row.errors[0]["at"]) == job_row.finished_at
        assert duration_of(job) >= timedelta(minutes=59) - TOLERANCE

    def test_a_job_to_be_retried_has_the_start_of_its_last_attempt(self) -> None:
        job, now = make_job("running"), time.monotonic()
        store.settle([Settlement(job.pk, job.lease, Outcome("scheduled", delay=60), now - 3600, now - 60)])
        job_row = state(job)
        assert job_row["finished_at"] is None
        assert timedelta(minutes=60) <= job_row["run_after"] - job_row["started_at"] - timedelta(seconds=60) + TOLERANCE

    def test_without_times_an_attempt_lasts_from_its_claim_until_it_is_settled(self) -> None:
        job = make_job("running", started_at=timedelta(hours=-1))
        store.settle([Settlement(job.pk, job.lease, COMPLETED)])
        assert state(job)["started_at"] == job.started_at
        assert duration_of(job) >= timedelta(hours=1)

    def test_a_job_whose_outcome_was_refused_has_the_times_of_its_attempt(self) -> None:
        job, now = make_job("running"), time.monotonic()
        refused_outcome = Outcome("completed", result="{oops")
        store.settle([Settlement(job.pk, job.lease, refused_outcome, now - 60, now)])
        assert abs(duration_of(job) - timedelta(seconds=60)) <= TOLERANCE
        assert Job.objects.get().errors[0]["duration_ms"] == pytest.approx(60_000)


def run_claimed(*jobs: Job) -> list[Attempt]:
    """Claim all jobs in one statement, as a worker that claims ahead. Run the jobs in turn, and settle all together."""
    executor = Executor(worker="w", database="default")
    _, claimed_jobs = settle_and_claim([], queue_names=["default"], limit=len(jobs), worker_id="w")
    attempts = [executor.execute(RunningAttempt(job)) for job in claimed_jobs]
    assert len(attempts) == len(jobs)
    store.settle(attempt.settlement for attempt in attempts if not attempt.is_written)
    return attempts


def test_the_time_between_claim_and_start_counts_as_waiting() -> None:
    attempts = run_claimed(*(jobs.slow.defer(0.05) for _ in range(3)))
    finished_jobs = [Job.objects.get(pk=attempt.job.id) for attempt in attempts]
    for attempt, finished_job in zip(attempts, finished_jobs, strict=True):
        assert abs(duration_of(finished_job) - timedelta(milliseconds=attempt.duration_ms)) <= TOLERANCE
        assert attempt.duration_ms >= 50
    for earlier_job, later_job in itertools.pairwise(finished_jobs):
        assert earlier_job.finished_at is not None
        assert later_job.started_at is not None
        assert earlier_job.finished_at <= later_job.started_at + TOLERANCE
    assert attempts[2].wait_ms >= attempts[2].job.wait_ms + 100, "two jobs of 50 ms ran before it"
    assert attempts[2].job.locked_at == attempts[0].job.locked_at


def test_a_job_that_a_task_completes_itself_has_the_start_of_its_attempt() -> None:
    for attempt in run_claimed(
        jobs.slow.defer(0.05), worker_jobs.completes_itself.defer("entry"), worker_jobs.atomic_write.defer("entry")
    ):
        row = Job.objects.get(pk=attempt.job.id)
        assert duration_of(row) <= timedelta(milliseconds=attempt.duration_ms) + TOLERANCE


def test_the_signal_job_started_has_the_time_for_which_the_job_waited(
    worker_thread: Callable[..., WorkerThread], attempts: dict[int, Attempt]
) -> None:
    waits: list[float] = []

    def receive(wait_ms: float, **_: Any) -> None:
        waits.append(wait_ms)

    job_started.connect(receive)
    try:
        job = make_job(task="tests.app.jobs.noop", run_after=timedelta(hours=-1))
        worker_thread(drain=True).wait()
    finally:
        job_started.disconnect(receive)
    assert waits == [pytest.approx(attempts[job.pk].wait_ms)]
    assert waits[0] >= 3_600_000  # an hour

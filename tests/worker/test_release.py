"""A worker releases jobs that it has claimed ahead of their run if its running jobs turn out to be long."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.models import Job
from django_skipqueue.worker.worker import WorkerLoop

from ..app import jobs, worker_jobs
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, workers

RunWorker = Callable[..., ManagePy]

SHORT_JOBS, LONG_JOBS = 500, 600
CLAIMED_AHEAD = 150
"""The least number of long jobs that a worker claims ahead, because it has just finished many short jobs."""

VERY_MANY_JOBS = 100_000

pytestmark = pytest.mark.django_db(transaction=True)


def defer_short_jobs_before_longer_ones() -> None:
    """Defer short jobs and then jobs of 0.3 s. After the short jobs, a worker claims hundreds of long jobs ahead."""
    jobs.noop.using(priority=1).defer_many([()] * SHORT_JOBS)
    jobs.slow.defer_many([(0.3,)] * LONG_JOBS)


def count_claimed_long_jobs() -> int:
    return Job.objects.running().filter(task=jobs.slow.name).count()


def test_an_urgent_job_does_not_wait_behind_jobs_claimed_ahead(runworker: RunWorker) -> None:
    defer_short_jobs_before_longer_ones()
    runworker("--concurrency", "4")
    wait_until(lambda: count_claimed_long_jobs() > 20, "the worker has claimed longer jobs ahead")
    urgent_job = jobs.noop.using(priority=100).defer()
    wait_until(lambda: Job.objects.completed().filter(pk=urgent_job.pk).exists(), "the urgent job is done")
    assert Job.objects.filter(status__in=("queued", "running")).count() > LONG_JOBS / 2


def test_an_idle_worker_gets_jobs_that_another_worker_has_claimed_ahead(runworker: RunWorker) -> None:
    defer_short_jobs_before_longer_ones()
    runworker("--concurrency", "4", "--name", "first")
    wait_until(lambda: count_claimed_long_jobs() > CLAIMED_AHEAD, "it has claimed longer jobs ahead")
    runworker("--concurrency", "4", "--name", "second")
    workers(2)
    wait_until(lambda: _completed_by("second") >= 8, "the second worker has run some jobs")
    assert Job.objects.filter(status__in=("queued", "running")).count() > LONG_JOBS / 2


def _completed_by(supervisor: str) -> int:
    """How many jobs the workers of this supervisor have completed."""
    (worker,) = [worker for worker in workers(2) if worker.name.startswith(f"{supervisor}/")]
    return Job.objects.completed().filter(locked_by=str(worker.id)).count()


def test_long_coroutines_are_released_while_short_jobs_run(worker_thread: Any, gates: Any) -> None:
    """A worker that claims hundreds of jobs in each exchange still checks which jobs wait too long."""
    jobs.anoop.using(priority=1, queue_name="coroutines").defer_many([()] * SHORT_JOBS)
    worker_jobs.apass_gate.using(queue_name="coroutines").defer_many([("g",)] * LONG_JOBS)
    jobs.noop.using(queue_name="threads").defer_many([()] * VERY_MANY_JOBS)
    claimed_coroutines = Job.objects.running().filter(task=worker_jobs.apass_gate.name)
    worker_thread(concurrency=4)
    wait_until(lambda: claimed_coroutines.count() > 20, "it has claimed coroutines ahead")
    wait_until(lambda: claimed_coroutines.count() <= 4, "it has released them")
    assert Job.objects.queued().filter(queue_name="threads").exists(), "other jobs are still queued"


def test_a_stopping_worker_sleeps_while_it_waits_for_threads_and_coroutines(worker_thread: Any, gates: Any) -> None:
    loop_turns = 0

    def count_turns(worker: WorkerLoop) -> None:
        wait = worker.wakeup.wait

        def count_and_wait(*arguments: Any, **options: Any) -> list[int]:
            nonlocal loop_turns
            loop_turns += 1
            return wait(*arguments, **options)

        worker.wakeup.wait = count_and_wait  # type: ignore[method-assign]

    worker_jobs.pass_gate.defer("g")
    worker_jobs.apass_gate.defer("g")
    worker = worker_thread(concurrency=1, prepare=count_turns)
    wait_until(lambda: gates["g"].inside == 2)
    worker.stop()
    wait_until(lambda: worker.worker.stopping)
    loop_turns_before = loop_turns
    time.sleep(0.5)
    assert loop_turns - loop_turns_before < 50  # a loop that did not sleep would turn thousands of times
    gates["g"].open()
    worker.wait()

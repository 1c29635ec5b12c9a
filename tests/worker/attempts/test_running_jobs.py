"""A worker's death counts as an attempt of the jobs that ran, and not of the jobs that were only claimed."""

import os
import signal
import warnings
from collections.abc import Callable

from django_skipqueue.models import Job, Worker
from django_skipqueue.worker.attempts.running_attempt import RunningJobs

from ...app.waiting import wait_until
from ...harness.processes import ManagePy, wait_for_statuses, workers

JOBS = """
    import asyncio
    import time

    from django_skipqueue import job


    @job(max_attempts=1)
    def quick(number):
        time.sleep(0.001)


    @job(max_attempts=1)
    def endless():
        while True:
            time.sleep(0.01)


    @job(max_attempts=1)
    async def aquick(number):
        await asyncio.sleep(0.001)
"""


def test_running_jobs_has_the_job_of_each_slot_until_its_end() -> None:
    running_jobs = RunningJobs(3)
    running_jobs.begin(0, 11)
    running_jobs.begin(2, 2**40)
    assert running_jobs.job_ids() == [11, 2**40]
    running_jobs.end(0)
    assert running_jobs.job_ids() == [2**40]


def test_only_the_jobs_named_by_charge_only_are_charged_afterwards() -> None:
    running_jobs = RunningJobs(3)
    for index in range(3):
        running_jobs.begin(index, 10 + index)
    running_jobs.charge_only([11, 99])
    assert running_jobs.job_ids() == [11]


def test_a_child_process_writes_what_its_parent_reads() -> None:
    running_jobs = RunningJobs(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork in a process with threads
        pid = os.fork()
    if pid == 0:
        running_jobs.begin(0, 7)
        os._exit(0)
    os.waitpid(pid, 0)
    assert running_jobs.job_ids() == [7]


def test_jobs_that_a_killed_worker_had_not_begun_are_released_without_a_charge(
    runworker: Callable[..., ManagePy],
) -> None:
    """Each job has only one attempt, so a job that is charged for the death fails."""
    endless_job = Job.objects.enqueue("extra.jobs.endless", max_attempts=1)
    for number in range(3_000):
        Job.objects.enqueue(f"extra.jobs.{'aquick' if number % 2 else 'quick'}", args=f"[{number}]", max_attempts=1)
    worker = runworker("-c", "2", jobs=JOBS)
    wait_until(lambda: Job.objects.completed().count() > 300, "the worker has claimed many jobs")
    os.kill(workers()[0].pid, signal.SIGKILL)
    worker.wait_for('cause="signal 9 (SIGKILL)"')
    wait_until(lambda: not Job.objects.unfinished().exists(), "everything is finished", deadline=60)
    endless_job.refresh_from_db()
    assert (endless_job.status, endless_job.last_error) == ("failed", "WorkerDied: worker died: signal 9 (SIGKILL)")
    other_jobs = Job.objects.exclude(pk=endless_job.pk)
    charged_count = other_jobs.failed().count()
    assert charged_count <= 3, "only what ran may have been charged: the other thread, and two coroutines"
    assert set(other_jobs.completed().values_list("attempts", flat=True)) == {1}
    assert "died before it began them; no attempt was charged" in worker.log


def test_the_death_of_an_idle_worker_is_charged_to_no_job(runworker: Callable[..., ManagePy]) -> None:
    runworker(jobs=JOBS)
    first_worker = workers()[0]
    Job.objects.enqueue("extra.jobs.quick", args="[1]", max_attempts=1)
    wait_for_statuses(completed=1)
    os.kill(first_worker.pid, signal.SIGKILL)
    wait_until(lambda: Worker.objects.exclude(pk=first_worker.pk).exists(), "another worker is there")
    Job.objects.enqueue("extra.jobs.quick", args="[1]", max_attempts=1)
    wait_for_statuses(completed=2)

"""Jobs that hang in one queue do not starve the quick jobs of another queue."""

import time
from collections.abc import Callable

import pytest

from django_skipqueue.models import Job
from django_skipqueue.supervisor.processes import WorkerProcess
from django_skipqueue.worker.log_queue import LogQueue

from ..app.rows import make_job
from ..app.waiting import wait_until
from ..harness.processes import ManagePy

RunWorker = Callable[..., ManagePy]


def test_a_worker_learns_from_its_predecessor_which_queues_have_hanging_jobs() -> None:
    process = WorkerProcess("w/1", concurrency=1)

    def note_hanging_job(lifeline: int, log: LogQueue) -> int:
        process.shared.hanging_queues.note("mail", 1.0, time.monotonic())
        return 0

    def check_queues(lifeline: int, log: LogQueue) -> int:
        hanging_queues = process.shared.hanging_queues
        names = [name for name in ("mail", "pdf") if hanging_queues.hangs(name, time.monotonic(), slots=2)]
        return 0 if names == ["mail"] else 1

    for run in (note_hanging_job, check_queues):
        process.fork(run)
        ended_process = wait_until(process.ended)
        assert ended_process is not None
        assert ended_process.code == 0


JOBS = """
    import time

    from django_skipqueue import job
    from django_skipqueue.values.backoff import constant


    @job(timeout=1, queue_name="hung", backoff=constant(1))
    def hang():
        time.sleep(3600)


    @job(queue_name="quick")
    def quick():
        pass
"""

TEST_SECONDS = 60.0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_more_hanging_jobs_than_slots_do_not_starve_another_queue(runworker: RunWorker) -> None:
    """Each hanging job holds a slot for six seconds, and is retried a second later. A full worker is replaced."""
    for _ in range(8):
        make_job(task="extra.jobs.hang", queue_name="hung", max_attempts=25)
    runworker("--processes", "1", "-c", "4", jobs=JOBS)
    deferred_count, end = 0, time.monotonic() + TEST_SECONDS
    while time.monotonic() < end:
        make_job(task="extra.jobs.quick", queue_name="quick")
        deferred_count += 1
        time.sleep(0.05)  # jobs arrive one after the other
    completed_count = Job.objects.completed().count()
    assert completed_count > 0.8 * deferred_count, f"{completed_count} of {deferred_count} quick jobs are done"

"""A stuck attempt of a job with a limit or a sequence gives its slot away, and keeps its permit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue.models import Job
from django_skipqueue.queue.gates import sweep_gates
from django_skipqueue.queue.store import Store
from django_skipqueue.worker.attempts import running_attempt
from django_skipqueue.worker.protocol import EXIT_CLEAN, EXIT_STUCK

from ...app import jobs
from ...app.limits.jobs import apass_gate_alone, pass_gate_alone, pass_gate_in_order
from ...app.rows import make_job
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, statuses, wait_for_statuses, workers
from ...harness.threads import WorkerThread

store = Store("default")

StartWorker = Callable[..., WorkerThread]
RunWorker = Callable[..., ManagePy]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stuck_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which an attempt counts as stuck at once."""
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)


def wait_until_a_stuck_attempt_keeps_its_permit(started: WorkerThread) -> None:
    wait_until(lambda: started.worker.pool.kept_back, "an attempt is stuck, and keeps its permit")


@pytest.mark.usefixtures("stuck_at_once")
@pytest.mark.parametrize("task", [pass_gate_alone, apass_gate_alone], ids=["def", "async def"])
def test_a_stuck_attempt_blocks_its_key_but_frees_its_slot(worker_thread: StartWorker, gates: Any, task: Any) -> None:
    stuck_job = task.using(timeout=0.2).defer("k", "stuck")
    next_job = task.defer("k", "after")
    worker = worker_thread(concurrency=2)
    wait_until_a_stuck_attempt_keeps_its_permit(worker)
    quick_jobs = (jobs.anoop if task is apass_gate_alone else jobs.noop).using(queue_name="q").defer_many([()] * 50)
    for key in ("other", "another"):
        task.using(queue_name="q").defer(key, "beside")  # half of the slots are kept for a queue whose jobs do not hang
    wait_until(lambda: gates["beside"].inside == 2, "both slots are free for others")
    gates["beside"].open()
    wait_for_statuses(completed=len(quick_jobs) + 2, running=1, blocked=1)
    assert sweep_gates(store) == 0, "no supervisor finds a free permit"
    assert not gates["after"].came
    gates["stuck"].open()
    gates["after"].open()
    wait_for_statuses(completed=len(quick_jobs) + 3, failed=1)
    stuck_job.refresh_from_db()
    next_job.refresh_from_db()
    assert stuck_job.last_error == "JobTimeout: timed out after 0.2 s"
    assert "it is stuck" in stuck_job.errors[0]["message"]
    assert next_job.started_at is not None
    assert stuck_job.finished_at is not None


@pytest.mark.usefixtures("stuck_at_once")
def test_the_next_attempt_of_a_sequence_begins_when_the_stuck_attempt_has_ended(
    worker_thread: StartWorker, gates: Any
) -> None:
    pass_gate_in_order.using(timeout=0.2).defer("k", "g")
    worker = worker_thread(concurrency=4)
    wait_until_a_stuck_attempt_keeps_its_permit(worker)
    gates["g"].open()
    wait_for_statuses(completed=1)
    assert (gates["g"].came, gates["g"].most) == (2, 1)


@pytest.mark.usefixtures("stuck_at_once")
def test_a_process_full_of_stuck_attempts_ends_and_writes_their_outcomes_last(
    worker_thread: StartWorker, gates: Any
) -> None:
    for key in "ab":
        pass_gate_alone.using(timeout=0.2).defer(key, "g")
    next_job = pass_gate_alone.defer("a", "next")
    assert worker_thread(concurrency=2).wait() == EXIT_STUCK
    assert statuses() == {"failed": 2, "queued": 1}, "the permit is free"
    assert {job.last_error for job in Job.objects.failed()} == {"JobTimeout: timed out after 0.2 s"}
    assert gates["g"].inside == 2
    gates["next"].open()
    worker_thread(concurrency=2)
    wait_until(lambda: Job.objects.completed().filter(pk=next_job.pk).exists())


@pytest.mark.usefixtures("stuck_at_once")
@pytest.mark.parametrize("options", [{"drain": True}, {"max_jobs": 2}, {}], ids=["--drain", "--max-jobs", "SIGTERM"])
def test_a_worker_that_stops_does_not_wait_for_a_stuck_attempt(
    worker_thread: StartWorker, gates: Any, options: dict[str, Any]
) -> None:
    pass_gate_alone.using(timeout=0.2, max_attempts=2).defer("k", "g")
    jobs.noop.defer()
    worker = worker_thread(concurrency=2, shutdown_timeout=HOUR, poll_interval=0.05, **options)
    if not options:
        wait_until_a_stuck_attempt_keeps_its_permit(worker)
        wait_until(lambda: statuses().get("completed"))
        worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"scheduled": 1, "completed": 1}
    assert gates["g"].inside == 1


@pytest.mark.usefixtures("stuck_at_once")
def test_a_cancelled_stuck_attempt_frees_its_permit(worker_thread: StartWorker, gates: Any) -> None:
    """By cancelling the job, the operator has given the permit back."""
    stuck_job = pass_gate_alone.using(timeout=0.2).defer("k", "g")
    gates["after"].open()
    pass_gate_alone.defer("k", "after")
    worker = worker_thread(concurrency=2)
    wait_until_a_stuck_attempt_keeps_its_permit(worker)
    assert store.cancel([stuck_job.pk])
    wait_until(lambda: sweep_gates(store) or not Job.objects.blocked().exists())
    wait_for_statuses(discarded=1, completed=1)
    gates["g"].open()
    wait_until(lambda: not worker.worker.in_flight.jobs)
    assert statuses() == {"discarded": 1, "completed": 1}


JOBS = """
    import time
    from pathlib import Path

    from django_skipqueue import job
    from django_skipqueue.values.backoff import constant


    @job(timeout=1, backoff=constant(0))
    def hang(path):
        is_first = not Path(path).exists()
        Path(path).touch()
        if is_first:
            time.sleep(3600)
"""


@pytest.mark.parametrize("dies", [False, True], ids=["it is replaced", "it dies"])
def test_the_job_runs_again_when_the_process_of_its_stuck_attempt_has_ended(
    runworker: RunWorker, tmp_path: Path, dies: bool
) -> None:
    fields: dict[str, Any] = {"limit_key": "k", "limit_kind": "limit", "capacity": 1, "max_attempts": 2}
    job = make_job(task="extra.jobs.hang", args=[str(tmp_path / "begun")], **fields)
    process = runworker("--processes", "1", "-c", "2" if dies else "1", jobs=JOBS)
    process.wait_for("job stuck", deadline=40)
    if dies:
        assert statuses() == {"running": 1}
        (worker,) = workers()
        os.kill(worker.pid, signal.SIGKILL)
    wait_for_statuses(completed=1)
    job.refresh_from_db()
    (error,) = job.errors
    assert error["exception"].rpartition(".")[2] == ("WorkerDied" if dies else "JobTimeout")
    assert job.attempts == 2

"""Worker processes are replaced after many jobs, or when they use much memory. No job is lost or loses an attempt."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from django_skipqueue.models import Job, Worker
from django_skipqueue.values.records import NEVER, LeaseRef
from django_skipqueue.worker import watchers as memory
from django_skipqueue.worker.attempts.running_attempt import Interrupter
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.watchers import RECYCLING_DELAY, RECYCLING_LOGGED_AFTER, Recycling

from ..app.jobs import noop
from ..app.waiting import wait_until
from ..app.worker_jobs import keep_memory
from ..harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]

HOLDING_JOBS = """
    import time
    from pathlib import Path

    from django_skipqueue import job


    @job
    def hold(path):
        Path(path).with_suffix(".running").touch()
        while not Path(path).exists():
            time.sleep(0.01)
"""


def test_a_worker_is_replaced_after_max_jobs_per_worker(runworker: RunWorker) -> None:
    noop.defer_many([{}] * 50)
    process = runworker("--max-jobs-per-worker", "10", "-c", "1")
    wait_for_statuses(completed=50)
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    process.wait_for('reason="it has run')
    process.wait_for("worker started", times=2)
    assert "died" not in process.log
    noop.defer()
    wait_for_statuses(completed=51)  # the replacement works
    process.send(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.parametrize(("max_jobs", "is_replaced"), [(None, True), (100, False)])
def test_after_an_interruption_a_worker_is_replaced_unless_it_has_max_jobs(
    max_jobs: int | None, is_replaced: bool
) -> None:
    interrupter = Interrupter()
    interrupter.interrupted_at = 1_000.0
    options = WorkerOptions(name="host", database="default", max_jobs=max_jobs)
    reasons: list[str] = []
    recycling = Recycling(options, interrupter, jobs_done=lambda: 1, recycle=reasons.append)
    assert recycling.due_at == (1_000.0 + RECYCLING_DELAY if is_replaced else NEVER)
    recycling.run(1_000.0 + RECYCLING_DELAY - 1)
    assert not reasons  # too early
    recycling.run(1_000.0 + RECYCLING_DELAY)
    assert bool(reasons) is is_replaced
    assert recycling.due_at == NEVER


def test_running_attempts_that_delay_the_replacement_are_logged_once() -> None:
    interrupter = Interrupter()
    interrupter.interrupted_at = 1_000.0
    interrupter.running = lambda: {(7, 1), (8, 1)}  # type: ignore[method-assign]
    logged_leases: list[set[LeaseRef]] = []
    options = WorkerOptions(name="host", database="default")
    recycling = Recycling(
        options, interrupter, jobs_done=lambda: 1, recycle=lambda _: None, log_wait=logged_leases.append
    )
    for second in range(int(RECYCLING_DELAY), int(RECYCLING_LOGGED_AFTER)):
        recycling.run(1_000.0 + second)
    assert not logged_leases
    for second in range(int(RECYCLING_LOGGED_AFTER), 2 * int(RECYCLING_LOGGED_AFTER)):
        recycling.run(1_000.0 + second)
    assert logged_leases == [{(7, 1), (8, 1)}]


def test_drain_ends_although_workers_are_replaced_meanwhile(runworker: RunWorker) -> None:
    noop.defer_many([{}] * 30)
    assert runworker("--drain", "--max-jobs-per-worker", "5").wait() == 0
    wait_for_statuses(completed=30)


def test_a_worker_that_uses_more_than_max_memory_mb_is_replaced(runworker: RunWorker) -> None:
    process = runworker("--max-memory-mb", "400")
    (first_worker,) = workers()
    keep_memory.defer(10)
    wait_for_statuses(completed=1)
    keep_memory.defer(450)
    process.wait_for("MiB", deadline=40)
    assert re.search(r"reason=\"it has grown to \d{3} MiB", process.log)
    wait_until(Worker.objects.exclude(pk=first_worker.pk).exists)
    wait_for_statuses(completed=2)


def test_a_running_job_is_finished_before_its_worker_is_replaced(runworker: RunWorker, tmp_path: Path) -> None:
    end_file, begun_file = tmp_path / "end", tmp_path / "end.running"
    held_job = Job.objects.enqueue("extra.jobs.hold", args=json.dumps([str(end_file)]))
    process = runworker("--max-jobs-per-worker", "1", "-c", "2", "--shutdown-timeout", "0", jobs=HOLDING_JOBS)
    wait_until(begun_file.exists)
    noop.defer()
    process.wait_for('reason="it has run 1 attempt"')
    assert process.log.count("worker started") == 1
    end_file.touch()
    wait_for_statuses(completed=2)
    held_job.refresh_from_db()
    assert (held_job.attempts, held_job.lease) == (1, 2)  # claimed once and settled once, never released


def test_the_used_memory_is_known_with_and_without_the_proc_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    with_proc = memory.resident_mb()
    monkeypatch.setattr(memory, "PROC", memory.PROC / "nothing")
    assert 0.5 * with_proc < memory.resident_mb() < 10 * with_proc

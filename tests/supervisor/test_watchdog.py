"""The watchdog kills a frozen worker, and its jobs are recovered. It does not kill a worker that is only slow."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_skipqueue.models import Job
from django_skipqueue.supervisor.liveness import FROZEN_AFTER, SILENT_AFTER, STACKS_SIGNAL, STACKS_TIME, Watchdog
from django_skipqueue.supervisor.processes import LONGEST_RESTART_DELAY, DeadProcess, WorkerProcess
from django_skipqueue.worker.protocol import EXIT_BLOCKED, EXIT_STUCK, Stamps

from ..app import jobs
from ..app.models import Ledger
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

SHORT_WATCHDOG_TIMES = """
    import ctypes, os
    from django_skipqueue import job
    from django_skipqueue.supervisor import liveness
    from django_skipqueue.worker import worker

    liveness.SILENT_AFTER, liveness.FROZEN_AFTER, worker.STAMP_INTERVAL = 4.0, 6.0, 0.5


    @job(max_attempts=1, timeout=1)
    def keep_the_interpreter():
        # As a C library that waits without releasing the GIL. A regular expression would also take a processor.
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
"""


class FakeProcess(WorkerProcess):
    """A `WorkerProcess` without a real process. It records the signals that it gets."""

    def __init__(self) -> None:
        super().__init__("w/1", 1)
        self.id, self.pid, self.stamps = "w/1:0123456789ab", 1, Stamps()
        self.signals: list[int] = []

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


class WatchdogWithFakes:
    """A `FakeProcess`, a watchdog for it, and the watchdog's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.process = FakeProcess()
        self.watchdog = Watchdog([self.process])

    def run_for(self, seconds: float) -> None:
        """Run the watchdog as often as a supervisor does, for this many seconds."""
        end = self.now + seconds
        while self.now <= end:
            self.watchdog.run(self.now)
            self.now = self.watchdog.due_at


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> WatchdogWithFakes:
    return WatchdogWithFakes(monkeypatch)


def test_a_worker_whose_loop_turns_gets_no_signal(
    fake_worker: WatchdogWithFakes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        fake_worker.process.stamps.put(jobs_done=0, within=5)
        fake_worker.run_for(SILENT_AFTER - 2)
    assert fake_worker.process.signals == []
    assert not caplog.records


def test_a_worker_whose_loop_stands_still_must_print_its_stacks_and_is_then_killed(
    fake_worker: WatchdogWithFakes, caplog: pytest.LogCaptureFixture
) -> None:
    fake_worker.run_for(FROZEN_AFTER - 1)
    assert fake_worker.process.signals == []
    assert caplog.text.count("worker silent") == 1
    fake_worker.run_for(1 + 2 * STACKS_TIME)
    assert fake_worker.process.signals == [STACKS_SIGNAL, signal.SIGKILL]
    assert caplog.text.count("worker frozen") == 1


def test_a_silent_worker_whose_loop_turns_again_gets_no_signal(
    fake_worker: WatchdogWithFakes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    fake_worker.run_for(FROZEN_AFTER - 1)
    fake_worker.process.stamps.put(jobs_done=0, within=5)
    fake_worker.run_for(FROZEN_AFTER - 1)
    assert fake_worker.process.signals == []
    assert "worker back" in caplog.text


def test_a_worker_that_announced_a_longer_turn_of_its_loop_gets_that_time(fake_worker: WatchdogWithFakes) -> None:
    fake_worker.process.stamps.put(jobs_done=0, within=4 * FROZEN_AFTER)
    fake_worker.run_for(4 * FROZEN_AFTER - 1)
    assert fake_worker.process.signals == []
    fake_worker.run_for(1 + 2 * STACKS_TIME)
    assert fake_worker.process.signals == [STACKS_SIGNAL, signal.SIGKILL]


def test_after_a_pause_of_the_whole_machine_a_worker_gets_its_whole_time_again(
    fake_worker: WatchdogWithFakes,
) -> None:
    fake_worker.run_for(FROZEN_AFTER - 2)
    fake_worker.now += 600  # the machine sleeps for ten minutes
    fake_worker.run_for(FROZEN_AFTER - 2)
    assert fake_worker.process.signals == []


@pytest.mark.parametrize(
    ("exit_code", "job_ids", "longest_delay"),
    [(EXIT_STUCK, [], 0.0), (EXIT_BLOCKED, [], 0.0), (-9, [7], 0.0), (-9, [], LONGEST_RESTART_DELAY)],
)
def test_only_the_replacement_of_a_worker_that_died_idle_is_delayed(
    exit_code: int, job_ids: list[int], longest_delay: float
) -> None:
    process = FakeProcess()
    process.started_at = float("inf")  # the process dies soon after its start
    dead_process = DeadProcess(process.id, exit_code, "a job was stuck", job_ids, 0.0)
    assert max(process.schedule_restart(dead_process) for _ in range(20)) == longest_delay


@pytest.mark.django_db(transaction=True)
def test_a_task_that_blocks_the_interpreter_fails_and_other_jobs_complete(runworker: RunWorker) -> None:
    process = runworker("-c", "1", "--poll-interval", HOUR, "--name", "w", jobs=SHORT_WATCHDOG_TIMES)
    workers()
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    blocking_job = Job.objects.enqueue("extra.jobs.keep_the_interpreter", max_attempts=1, priority=1)
    jobs.noop.using(max_attempts=1).defer_many([()] * 3)
    wait_for_statuses(failed=1, completed=4, deadline=60)
    assert "frozen" in Job.objects.get(pk=blocking_job.pk).last_error
    for line in ("worker silent", "worker frozen", "worker died", "most recent call first", "in keep_the_interpreter"):
        assert line in process.log, process.log


@pytest.mark.django_db(transaction=True)
def test_a_worker_stopped_by_sigstop_is_killed_and_its_job_is_recovered(runworker: RunWorker) -> None:
    jobs.record_and_hold.using(max_attempts=2).defer("a")
    process = runworker("--poll-interval", HOUR, jobs=SHORT_WATCHDOG_TIMES)
    (stopped_worker,) = workers()
    wait_until(lambda: Ledger.objects.filter(entry="a").exists())
    os.kill(stopped_worker.pid, signal.SIGSTOP)
    process.wait_for("worker frozen", deadline=60)
    wait_until(lambda: Job.objects.get().attempts == 2)
    assert "frozen" in Job.objects.get().last_error


@pytest.mark.django_db(transaction=True)
def test_an_idle_worker_is_not_killed_as_frozen(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR, jobs=SHORT_WATCHDOG_TIMES, skipqueue={"HEARTBEAT_INTERVAL": 1})
    (worker,) = workers()
    first_heartbeat: Any = worker.heartbeat_at

    def has_sent_heartbeats_for_8_seconds() -> bool:
        worker.refresh_from_db()
        return bool((worker.heartbeat_at - first_heartbeat).total_seconds() > 8)

    wait_until(has_sent_heartbeats_for_8_seconds)
    assert "worker silent" not in process.log
    assert [worker_now.pk for worker_now in workers()] == [worker.pk]

"""The watchdog: a frozen worker is killed and its jobs recovered; a worker that is only slow is left alone."""

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

Run = Callable[..., ManagePy]
HOUR = "3600"

IMPATIENT = """
    import re
    from django_skipqueue import job
    from django_skipqueue.supervisor import liveness
    from django_skipqueue.worker import worker

    liveness.SILENT_AFTER, liveness.FROZEN_AFTER, worker.STAMP_INTERVAL = 4.0, 6.0, 0.5


    @job(max_attempts=1, timeout=1)
    def keep_the_interpreter():
        re.match("(a+)+$", "a" * 64 + "b")
"""


class FakeProcess(WorkerProcess):
    """Stands for a `WorkerProcess` without a process. Notes the signals that it gets."""

    def __init__(self) -> None:
        super().__init__("w/1", 1)
        self.id, self.pid, self.stamps = "w/1:0123456789ab", 1, Stamps()
        self.signals: list[int] = []

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


class Observed:
    """A `FakeProcess`, a watchdog for it, and the watchdog's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.process = FakeProcess()
        self.watchdog = Watchdog([self.process])

    def look_for(self, seconds: float) -> None:
        """Run the watchdog as often as a supervisor does, for this many seconds."""
        end = self.now + seconds
        while self.now <= end:
            self.watchdog.run(self.now)
            self.now = self.watchdog.due_at


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(monkeypatch)


def test_a_loop_that_moves_is_left_alone(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        observed.process.stamps.put(jobs_done=0, within=5)
        observed.look_for(SILENT_AFTER - 2)
    assert observed.process.signals == []
    assert not caplog.records


def test_a_loop_that_stands_still_is_logged_then_asked_for_its_stacks_then_killed(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    observed.look_for(FROZEN_AFTER - 1)
    assert observed.process.signals == []
    assert caplog.text.count("worker silent") == 1
    observed.look_for(1 + 2 * STACKS_TIME)
    assert observed.process.signals == [STACKS_SIGNAL, signal.SIGKILL]
    assert caplog.text.count("worker frozen") == 1


def test_a_loop_that_moves_again_is_left_alone(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    observed.look_for(FROZEN_AFTER - 1)
    observed.process.stamps.put(jobs_done=0, within=5)
    observed.look_for(FROZEN_AFTER - 1)
    assert observed.process.signals == []
    assert "worker back" in caplog.text


def test_a_loop_that_says_that_it_may_take_longer_has_that_time(observed: Observed) -> None:
    observed.process.stamps.put(jobs_done=0, within=4 * FROZEN_AFTER)
    observed.look_for(4 * FROZEN_AFTER - 1)
    assert observed.process.signals == []
    observed.look_for(1 + 2 * STACKS_TIME)
    assert observed.process.signals == [STACKS_SIGNAL, signal.SIGKILL]


def test_a_supervisor_that_was_paused_with_its_worker_gives_it_the_whole_time_again(observed: Observed) -> None:
    observed.look_for(FROZEN_AFTER - 2)
    observed.now += 600
    observed.look_for(FROZEN_AFTER - 2)
    assert observed.process.signals == []


@pytest.mark.parametrize(
    ("code", "job_ids", "longest"),
    [(EXIT_STUCK, [], 0.0), (EXIT_BLOCKED, [], 0.0), (-9, [7], 0.0), (-9, [], LONGEST_RESTART_DELAY)],
)
def test_only_idle_deaths_delay_the_replacement_of_a_worker(code: int, job_ids: list[int], longest: float) -> None:
    process = FakeProcess()
    process.filled_at = float("inf")  # each dies soon after its start
    dead = DeadProcess(process.id, code, "a job was stuck", job_ids, 0.0)
    assert max(process.schedule_restart(dead) for _ in range(20)) == longest


@pytest.mark.django_db(transaction=True)
def test_a_task_that_blocks_the_interpreter_loses_its_own_attempt(runworker: Run) -> None:
    process = runworker("-c", "1", "--poll-interval", HOUR, "--name", "w", jobs=IMPATIENT)
    workers()
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    hog = Job.objects.enqueue("extra.jobs.keep_the_interpreter", max_attempts=1, priority=1)
    jobs.noop.using(max_attempts=1).defer_many([()] * 3)
    wait_for_statuses(failed=1, completed=4, deadline=60)
    assert "frozen" in Job.objects.get(pk=hog.pk).last_error
    for line in ("worker silent", "worker frozen", "worker died", "most recent call first", "in keep_the_interpreter"):
        assert line in process.log, process.log


@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_stopped_alone_is_ended_and_what_it_ran_is_recovered(runworker: Run) -> None:
    jobs.record_and_hold.using(max_attempts=2).defer("a")
    process = runworker("--poll-interval", HOUR, jobs=IMPATIENT)
    (first,) = workers()
    wait_until(lambda: Ledger.objects.filter(entry="a").exists())
    os.kill(first.pid, signal.SIGSTOP)
    process.wait_for("worker frozen", deadline=60)
    wait_until(lambda: Job.objects.get().attempts == 2)
    assert "frozen" in Job.objects.get().last_error


@pytest.mark.django_db(transaction=True)
def test_an_idle_worker_is_not_taken_for_a_frozen_one(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR, jobs=IMPATIENT, skipqueue={"HEARTBEAT_INTERVAL": 1})
    (worker,) = workers()
    started: Any = worker.heartbeat_at

    def watched_for_long() -> bool:
        worker.refresh_from_db()
        return bool((worker.heartbeat_at - started).total_seconds() > 8)

    wait_until(watched_for_long)
    assert "worker silent" not in process.log
    assert [each.pk for each in workers()] == [worker.pk]

"""Attempts that take too long are interrupted. Other attempts are not."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import ProgrammingError

from django_skipqueue import Retry
from django_skipqueue.exceptions import InvalidOption, JobTimeout
from django_skipqueue.models import Job
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.worker.attempts import running_attempt as module
from django_skipqueue.worker.attempts.running_attempt import EXPOSED, SHIELDED, Interrupter, RunningAttempt

from ...app.jobs import add
from ...app.waiting import DEADLINE, collect
from ...harness.processes import ManagePy, wait_for_statuses

JOBS = """
    import asyncio
    import time

    from asgiref.sync import sync_to_async
    from django.db import transaction
    from django_skipqueue import job


    @job(timeout=0.2, max_attempts=1)
    def sleeps_in_python():
        while True:
            time.sleep(0.01)


    @job(timeout=0.2, max_attempts=1)
    def catches_exceptions():
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass


    @job(timeout=0.2, max_attempts=1)
    def ignores_everything():
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                pass


    @job(timeout=2, max_attempts=1, takes_context=True)
    def hangs_in_its_completion(context):
        with transaction.atomic():
            context.complete()
            time.sleep(3600)


    @job(timeout=0.2, max_attempts=1)
    async def sleeps_in_coroutine():
        await asyncio.sleep(3600)


    @job(timeout=0.2, max_attempts=2, backoff=lambda attempt: 0)
    async def cleans_up():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            raise


    @job(timeout=0.2, max_attempts=1)
    async def leaves_a_thread_behind():
        await sync_to_async(time.sleep)(3600)


    @job
    def neighbour():
        time.sleep(0.5)


    @job
    async def coroutine_neighbour():
        await asyncio.sleep(0.5)
"""


def make_claimed(job_id: int = 1) -> ClaimedJob:
    """A job as the worker that has claimed it knows it."""
    return ClaimedJob(
        id=job_id, lease=1, task="task", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
        priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
    )  # fmt: skip


def make_attempt(timeout: float, job_id: int = 1) -> RunningAttempt:
    """An attempt that may take this many seconds."""
    attempt = RunningAttempt(make_claimed(job_id))
    attempt.timeout = timeout
    return attempt


def stay_busy(seconds: float) -> None:
    """Run Python code for this long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def keep_enforcing(interrupter: Interrupter) -> Callable[[], None]:
    """Enforces the limits in a thread, as the control loop does. Returns a function that ends the thread."""
    is_over = threading.Event()

    def loop() -> None:
        while not is_over.is_set():
            interrupter.enforce()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()

    def end_thread() -> None:
        is_over.set()
        thread.join()

    return end_thread


def test_a_call_that_ends_in_time_is_not_interrupted() -> None:
    interrupter = Interrupter()
    assert interrupter.run(make_attempt(60), lambda: "done") == "done"
    assert interrupter.next_deadline == float("inf")


def test_a_call_that_takes_too_long_is_interrupted_by_job_timeout() -> None:
    interrupter = Interrupter()
    end_thread = keep_enforcing(interrupter)
    try:
        with pytest.raises(JobTimeout, match=r"timed out after 0\.05 s"):
            interrupter.run(make_attempt(0.05), lambda: stay_busy(60))
    finally:
        end_thread()


def test_code_after_a_call_that_ends_at_its_deadline_is_never_interrupted() -> None:
    """Each call ends at about its deadline, so that the interruption and the end of the call race."""
    interrupter = Interrupter()
    original_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that Python switches threads often
    end_thread = keep_enforcing(interrupter)
    outcomes = {"in time": 0, "too late": 0}
    try:
        for number in range(2_000):
            try:
                interrupter.run(make_attempt(0.0004, number), lambda: stay_busy(0.0004))
            except JobTimeout:
                outcomes["too late"] += 1
            else:
                outcomes["in time"] += 1
            stay_busy(0.00005)  # a late interruption would be raised here
    finally:
        end_thread()
        sys.setswitchinterval(original_interval)
    assert interrupter.enforce() == []
    assert interrupter.next_deadline == float("inf")
    assert min(outcomes.values()) > 0, f"the race was not run: {outcomes}"


def test_an_interruption_at_the_end_of_an_uninterrupted_block_is_not_lost() -> None:
    """The call enters and leaves blocks that delay interruptions. It is interrupted when its time is over."""
    interrupter = Interrupter()
    original_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that Python switches threads often
    gc.disable()  # Hypothesis adds a callback to the garbage collector, and an exception raised in the callback is lost
    end_thread = keep_enforcing(interrupter)

    def call() -> None:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            with interrupter.uninterrupted():
                pass

    try:
        for number in range(300):
            with pytest.raises(JobTimeout):
                interrupter.run(make_attempt(0.0002, number), call)
            stay_busy(0.00005)
    finally:
        end_thread()
        gc.enable()
        sys.setswitchinterval(original_interval)


class LeavingItsShield(dict[str, bool]):
    """The state of an attempt that leaves its shield, in which it is not interrupted, while the control loop reads it.

    The control loop calls `pop` twice. The attempt leaves the shield between the two calls.
    """

    def __init__(self, attempt: RunningAttempt) -> None:
        super().__init__({SHIELDED: True})
        self._attempt: RunningAttempt | None = attempt

    def pop(self, state: str, default: Any = None) -> Any:
        value = super().pop(state, default)
        if state == EXPOSED and self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            assert attempt.unshield()
        return value


def test_an_attempt_that_leaves_its_shield_during_the_interruption_is_interrupted() -> None:
    attempt = RunningAttempt(make_claimed())
    attempt.exposure = LeavingItsShield(attempt)
    attempt.coroutine = Mock()  # so that nothing is raised in the thread of this test
    assert attempt.interrupt(JobTimeout("over"))
    assert attempt.interruption is not None
    assert not attempt.exposure


def test_an_interrupted_attempt_that_has_just_ended_is_not_stuck() -> None:
    interrupter = Interrupter()
    attempt = RunningAttempt(make_claimed())
    attempt.coroutine = Mock()  # so that nothing is raised in the thread of this test
    interrupter.begin(attempt)
    interrupter.cancel(attempt.job, "no")
    attempt.due_at = 0.0
    attempt.end()
    assert interrupter.enforce() == []
    assert not attempt.is_stuck


def test_require_in_time_does_not_block_after_a_coroutine_is_cancelled() -> None:
    """No exception is raised in the thread, because the coroutine is cancelled instead."""
    attempt = RunningAttempt(make_claimed())
    attempt.coroutine = Mock()
    attempt.expose()
    assert attempt.interrupt(JobTimeout("over"))
    other_thread = threading.Thread(target=attempt.require_in_time, daemon=True)
    other_thread.start()
    other_thread.join(DEADLINE)
    is_stuck = other_thread.is_alive()
    assert attempt.interruption is not None
    attempt.interruption.is_raised = True  # so that the thread ends
    assert not is_stuck


def test_require_in_time_raises_in_an_interrupted_coroutine() -> None:
    interrupter = Interrupter()
    attempt = RunningAttempt(make_claimed())

    async def block() -> None:
        with interrupter.coroutine(attempt):
            interrupting = threading.Thread(target=attempt.interrupt, args=[JobTimeout("over")])
            interrupting.start()
            interrupting.join()
            attempt.require_in_time()

    with pytest.raises(JobTimeout, match="over"):
        asyncio.run(block())


def test_the_exception_of_a_call_is_raised_to_its_caller() -> None:
    interrupter = Interrupter()
    with pytest.raises(ZeroDivisionError):
        interrupter.run(make_attempt(60), lambda: 1 / 0)


def test_a_database_error_caused_by_a_timeout_is_raised_as_the_timeout() -> None:
    """An interruption in a statement causes a database error, which a task might catch to retry the statement."""
    interrupter = Interrupter()

    def call() -> None:
        try:
            stay_busy(60)
        except JobTimeout:
            raise ProgrammingError("can't change 'autocommit' now") from None

    end_thread = keep_enforcing(interrupter)
    try:
        with pytest.raises(JobTimeout, match=r"timed out after 0\.05 s") as error_info:
            interrupter.run(make_attempt(0.05), call)
    finally:
        end_thread()
    assert isinstance(error_info.value.__cause__, ProgrammingError)


def test_an_exception_that_a_task_raises_instead_of_its_timeout_counts() -> None:
    interrupter = Interrupter()

    def call() -> None:
        try:
            stay_busy(60)
        except JobTimeout:
            raise Retry(after=60) from None

    end_thread = keep_enforcing(interrupter)
    try:
        with pytest.raises(Retry):
            interrupter.run(make_attempt(0.05), call)
    finally:
        end_thread()


def test_a_call_that_ignores_its_timeout_is_reported_as_stuck_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK_AFTER", 0.05)
    interrupter = Interrupter()
    may_end = threading.Event()

    def ignore_timeouts() -> None:
        while not may_end.is_set():
            try:
                time.sleep(0.001)
            except JobTimeout:
                continue

    thread = threading.Thread(target=lambda: interrupter.run(make_attempt(0.05, 7), ignore_timeouts), daemon=True)
    thread.start()
    try:
        [(stuck_attempt, stack)] = collect(interrupter.enforce, 1, "the call is found to be stuck")
    finally:
        may_end.set()
        thread.join()
    assert stuck_attempt.job.id == 7
    assert "ignore_timeouts" in stack
    assert interrupter.enforce() == []


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), True, "soon"])
def test_a_timeout_that_is_not_a_positive_number_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidOption, match=r"above 0, at most 31,536,000,000, .*no time limit"):
        add.using(timeout=timeout)


@pytest.mark.parametrize(
    "task", ["sleeps_in_python", "catches_exceptions", "sleeps_in_coroutine", "leaves_a_thread_behind"]
)
def test_an_attempt_that_takes_too_long_fails_and_its_neighbours_complete(
    task: str, runworker: Callable[..., ManagePy]
) -> None:
    job = Job.objects.enqueue(f"extra.jobs.{task}", max_attempts=1)
    neighbours = [Job.objects.enqueue(f"extra.jobs.{name}") for name in ("neighbour", "coroutine_neighbour")]
    assert runworker("--drain", jobs=JOBS).wait() == 0
    job.refresh_from_db()
    assert (job.status, job.last_error) == ("failed", "JobTimeout: timed out after 0.2 s")
    assert job.errors[0]["exception"] == "django_skipqueue.exceptions.JobTimeout"
    for neighbour in neighbours:
        neighbour.refresh_from_db()
    assert {(neighbour.status, neighbour.attempts) for neighbour in neighbours} == {("completed", 1)}


def test_an_attempt_that_timed_out_is_retried(runworker: Callable[..., ManagePy]) -> None:
    job = Job.objects.enqueue("extra.jobs.cleans_up", max_attempts=2)
    assert runworker("--drain", jobs=JOBS).wait() == 0
    job.refresh_from_db()
    assert (job.status, job.attempts, len(job.errors)) == ("failed", 2, 2)


def test_a_job_can_have_its_own_time_limit(runworker: Callable[..., ManagePy]) -> None:
    job = Job.objects.enqueue("extra.jobs.neighbour", max_attempts=1, timeout=0.05)
    assert runworker("--drain", jobs=JOBS).wait() == 0
    job.refresh_from_db()
    assert job.last_error == "JobTimeout: timed out after 0.05 s"


def test_a_timeout_given_to_using_is_stored_with_the_job(db: None) -> None:
    assert add.using(timeout=2.5).defer(1).timeout == 2.5
    assert add.defer(1).timeout is None


def test_a_worker_with_a_stuck_job_is_replaced_and_the_other_jobs_complete(runworker: Callable[..., ManagePy]) -> None:
    stuck_job = Job.objects.enqueue("extra.jobs.ignores_everything", max_attempts=1)
    neighbour_ids = [Job.objects.enqueue("extra.jobs.neighbour").pk for _ in range(3)]
    worker = runworker("-c", "2", jobs=JOBS)
    worker.wait_for("worker recycled")
    wait_for_statuses(failed=1, completed=3)
    stuck_job.refresh_from_db()
    assert "did not end within 5 s more" in stuck_job.errors[0]["message"]
    assert "ignores_everything" in stuck_job.errors[0]["traceback"]
    assert set(Job.objects.filter(pk__in=neighbour_ids).values_list("attempts", flat=True)) == {1}
    Job.objects.enqueue("extra.jobs.neighbour")
    wait_for_statuses(failed=1, completed=4)  # the replacement works
    assert "worker died" not in worker.log, "it was planned"


def test_the_supervisor_fails_a_stuck_job_whose_row_its_own_task_has_locked(
    runworker: Callable[..., ManagePy],
) -> None:
    """The worker cannot write the failure. If the job were released without a charge, it would get stuck for ever."""
    Job.objects.enqueue("extra.jobs.hangs_in_its_completion", max_attempts=1)
    neighbour_ids = [Job.objects.enqueue("extra.jobs.neighbour").pk for _ in range(3)]
    worker = runworker("-c", "1", "--shutdown-timeout", "0.5", jobs=JOBS)
    wait_for_statuses(failed=1, completed=3, deadline=60)
    assert worker.log.count('reason="every slot has an attempt that is stuck"') == 1
    assert "worker died " not in worker.log
    assert Job.objects.failed().get().last_error == "WorkerDied: worker died: a job was stuck"
    assert set(Job.objects.filter(pk__in=neighbour_ids).values_list("attempts", flat=True)) == {1}

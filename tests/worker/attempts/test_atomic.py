"""Tasks that share a transaction with their outcome: both are committed or neither, and neither without the lease."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.dispatch import Signal

from django_skipqueue import JobContext, job
from django_skipqueue.exceptions import CannotComplete, InvalidTask, LeaseLost
from django_skipqueue.jobs.task import Task
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.signals import job_completed, lease_lost
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.records import Attempt
from django_skipqueue.worker.attempts import running_attempt
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt
from django_skipqueue.worker.protocol import EXIT_CLEAN, EXIT_STUCK

from ...app import jobs
from ...app.models import Ledger
from ...app.rows import settle_and_claim
from ...app.waiting import wait_until
from ...app.worker_jobs import (
    acompletes_itself,
    atomic_breaks,
    atomic_completes_itself,
    atomic_dies_once,
    atomic_gate,
    atomic_gets_over_its_timeout,
    atomic_hook_passes_gate,
    atomic_hook_raises,
    atomic_hook_takes_too_long,
    atomic_leaves_block,
    atomic_returns,
    atomic_timeout,
    atomic_write,
    atomic_write_and_hook,
    completes_in_a_savepoint_and_stays,
    completes_itself,
    hooked,
    write_complete_and_hook,
)
from ...harness.processes import ManagePy, statuses, wait_for_statuses

store = Store("default")

StartWorker = Callable[..., Any]
RecordSignal = Callable[[Signal], list[dict[str, Any]]]

# `xmin` is the transaction that wrote the row.
IN_ONE_TRANSACTION = (
    "SELECT (SELECT xmin::text FROM skipqueue_job WHERE id = %s) = (SELECT xmin::text FROM testapp_ledger)"
)


@pytest.fixture
def run_job(transactional_db: None) -> Callable[..., tuple[Job, Attempt]]:
    """Runs one job as a pool thread does, and settles what the attempt has not written."""

    def run(task: Task[..., Any], *args: Any, **kwargs: Any) -> tuple[Job, Attempt]:
        deferred_job = task.using(max_attempts=1).defer(*args, **kwargs)
        _, [claimed_job] = settle_and_claim([], queue_names=["default"], limit=1, worker_id="w")
        attempt = Executor(worker="w", database="default").execute(RunningAttempt(claimed_job))
        if not attempt.is_written:
            store.settle([attempt.settlement])
        deferred_job.refresh_from_db()
        return deferred_job, attempt

    return run


RunJob = Callable[..., tuple[Job, Attempt]]


def was_committed_with_its_ledger_row(finished_job: Job) -> bool:
    """Whether the only row of the ledger and the job's row were written by one transaction."""
    with connection.cursor() as cursor:
        cursor.execute(IN_ONE_TRANSACTION, [finished_job.pk])
        return bool(cursor.fetchone()[0])


def test_an_atomic_task_and_its_outcome_are_committed_in_one_transaction(run_job: RunJob) -> None:
    finished_job, attempt = run_job(atomic_write, "once")
    assert (finished_job.status, finished_job.result, attempt.is_written) == ("completed", "once", True)
    assert was_committed_with_its_ledger_row(finished_job)


def test_what_an_atomic_task_wrote_is_rolled_back_when_it_fails(run_job: RunJob) -> None:
    finished_job, attempt = run_job(atomic_write, "once", fails=True)
    assert (finished_job.status, finished_job.last_error, attempt.is_written) == (
        "failed",
        "ValueError: as asked",
        False,
    )
    assert not Ledger.objects.exists()


@pytest.mark.parametrize("how", ["set_rollback", "statement", "close"])
def test_an_atomic_task_that_breaks_its_transaction_fails(run_job: RunJob, how: str) -> None:
    finished_job, _ = run_job(atomic_breaks, how)
    assert finished_job.status == "failed"
    assert not Ledger.objects.exists()


def test_an_atomic_task_with_an_unstorable_result_is_rolled_back(run_job: RunJob) -> None:
    finished_job, _ = run_job(atomic_returns, "set")
    assert finished_job.status == "failed"
    assert "UnstorableResult" in finished_job.last_error
    assert not Ledger.objects.exists()


def test_an_atomic_task_that_leaves_a_transaction_open_fails_and_is_rolled_back(worker_thread: StartWorker) -> None:
    job_with_open_block = atomic_leaves_block.using(max_attempts=1).defer()
    worker_thread()
    wait_for_statuses(failed=1)
    job_with_open_block.refresh_from_db()
    assert job_with_open_block.last_error == (
        "TransactionManagementError: The task left a transaction open, so nothing of it is committed."
    )
    assert not Ledger.objects.exists()


def test_an_atomic_task_that_has_lost_its_lease_is_rolled_back(
    worker_thread: StartWorker, gates: Any, record_signal: RecordSignal
) -> None:
    lost_leases = record_signal(lease_lost)
    running_job = atomic_gate.defer("lost")
    worker_thread()
    wait_until(lambda: gates["lost"].inside)
    [(_, worker_id)] = Job.objects.running().values_list("pk", "locked_by")
    with transaction.atomic():
        assert store.recover(worker_ids=[worker_id])  # as if the worker had died
        Job.objects.filter(pk=running_job.pk).update(queue_name="elsewhere")
    gates["lost"].open()
    [event] = wait_until(lambda: lost_leases)
    assert not Ledger.objects.exists()
    running_job.refresh_from_db()
    assert running_job.status == "queued"
    assert event["attempt"].outcome.error["exception"].endswith(".LeaseLost")


def test_an_atomic_job_sends_one_signal_and_counts_once(
    worker_thread: StartWorker, record_signal: RecordSignal
) -> None:
    completed_events = record_signal(job_completed)
    for number in range(5):
        atomic_write.defer(str(number))
    worker = worker_thread(max_jobs=5)
    worker.wait()
    assert sorted(event["attempt"].outcome.result for event in completed_events) == [
        f'"{number}"' for number in range(5)
    ]
    assert worker.worker.jobs_done == 5


def test_an_outcome_is_written_once_although_the_answer_to_its_commit_was_lost(
    worker_thread: StartWorker, record_signal: RecordSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper: Any = DatabaseWrapper
    commit = wrapper._commit
    cut_commits: list[bool] = []

    def commit_and_cut(self: Any) -> None:
        commit(self)
        if threading.current_thread().name.startswith("skipqueue-") and not cut_commits:
            cut_commits.append(True)
            raise OperationalError("the answer was lost")

    monkeypatch.setattr(DatabaseWrapper, "_commit", commit_and_cut)
    completed_events = record_signal(job_completed)
    finished_job = atomic_write.defer("once")
    worker_thread()
    [event] = wait_until(lambda: completed_events)
    assert event["attempt"].outcome.status == "completed"
    finished_job.refresh_from_db()
    assert (finished_job.status, finished_job.result, finished_job.errors) == ("completed", "once", [])
    assert Ledger.objects.count() == 1


def test_a_hook_that_raises_after_the_commit_leaves_the_job_completed(
    run_job: RunJob, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        finished_job, attempt = run_job(atomic_hook_raises)
    assert (finished_job.status, attempt.is_written) == ("completed", True)
    assert "raised after completion" in caplog.text
    assert 'error="ValueError: in the hook' in caplog.text


def test_a_hook_that_takes_too_long_is_interrupted_and_leaves_the_job_completed(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    atomic_hook_takes_too_long.defer()
    with caplog.at_level(logging.ERROR):
        assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}
    assert "raised after completion" in caplog.text
    assert 'error="JobTimeout: timed out after 1.5 s' in caplog.text


def test_a_hook_that_hangs_has_the_worker_replaced_and_leaves_the_job_completed(
    worker_thread: StartWorker, gates: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    atomic_hook_passes_gate.defer("never")
    with caplog.at_level(logging.WARNING):
        worker = worker_thread(concurrency=1)
        assert worker.wait() == EXIT_STUCK
    assert statuses() == {"completed": 1}
    assert worker.worker.jobs_done == 1
    assert "raised after completion" in caplog.text
    assert 'error="JobTimeout' in caplog.text
    assert "lease lost" not in caplog.text


SLOW_COMMIT = """
CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON testapp_ledger DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION be_slow()
"""


@pytest.fixture
def _slow_commit(transactional_db: None) -> Iterator[None]:
    """Make each commit take three seconds, so long that a busy machine does everything else in half of this time."""
    with connection.cursor() as cursor:
        cursor.execute(SLOW_COMMIT)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER slow ON testapp_ledger; DROP FUNCTION be_slow")


@pytest.mark.usefixtures("_slow_commit")
def test_a_job_whose_slow_commit_succeeds_is_completed_although_it_was_given_up(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has given up the attempt, and is about to write its failure. The task's commit comes first."""
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    atomic_write.using(timeout=1.5, max_attempts=1).defer("slow")
    assert worker_thread(concurrency=1).wait() == EXIT_STUCK
    assert statuses() == {"completed": 1}
    assert Ledger.objects.count() == 1


@pytest.mark.usefixtures("_slow_commit", "gates")
@pytest.mark.parametrize("task", [atomic_write_and_hook, write_complete_and_hook], ids=["atomic", "complete()"])
def test_a_commit_is_not_interrupted_by_the_time_limit_and_its_hooks_are_called(
    worker_thread: StartWorker, task: Task[..., Any]
) -> None:
    events: list[str] = []

    def record_event(signal: Any, **_: Any) -> None:
        events.append("completed" if signal is job_completed else "lost")

    hooked.clear()
    for signal in (job_completed, lease_lost):
        signal.connect(record_event)
    try:
        task.using(timeout=1.5, max_attempts=1, priority=1).defer("slow")
        jobs.noop.defer()
        assert worker_thread(drain=True, concurrency=1).wait() == EXIT_CLEAN
    finally:
        for signal in (job_completed, lease_lost):
            signal.disconnect(record_event)
    assert statuses() == {"completed": 2}
    assert (hooked, events) == (["slow"], ["completed", "completed"])


def test_no_interruption_comes_between_a_commit_and_its_first_hook(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Django would not call the hooks: those of the project, and the hook that records the commit."""
    wrapper: Any = DatabaseWrapper
    set_autocommit = wrapper._set_autocommit

    def set_autocommit_slowly(self: Any, autocommit: bool) -> None:
        if autocommit and self.run_on_commit:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                time.sleep(0.005)
        set_autocommit(self, autocommit)

    monkeypatch.setattr(DatabaseWrapper, "_set_autocommit", set_autocommit_slowly)
    hooked.clear()
    atomic_write_and_hook.using(timeout=1.5, max_attempts=1).defer("slow")
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert (statuses(), hooked) == ({"completed": 1}, ["slow"])


def test_an_atomic_task_that_catches_its_timeout_is_rolled_back_all_the_same(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 60.0)
    late_job = atomic_gets_over_its_timeout.defer("g")
    worker = worker_thread()
    wait_until(lambda: worker.worker.pool.executor.interrupter.interrupted_at < float("inf"))
    gates["g"].open()
    wait_for_statuses(failed=1)
    late_job.refresh_from_db()
    assert late_job.last_error == "JobTimeout: timed out after 0.1 s"
    assert not Ledger.objects.exists()


def test_the_time_limit_still_holds_after_complete_was_rolled_back_to_a_savepoint(worker_thread: StartWorker) -> None:
    late_job = completes_in_a_savepoint_and_stays.defer()
    worker_thread()
    wait_for_statuses(failed=1)
    late_job.refresh_from_db()
    assert late_job.last_error == "JobTimeout: timed out after 0.2 s"


def test_an_atomic_task_that_takes_too_long_is_rolled_back(worker_thread: StartWorker) -> None:
    late_job = atomic_timeout.defer()
    worker_thread()
    wait_for_statuses(failed=1)
    late_job.refresh_from_db()
    assert late_job.last_error == "JobTimeout: timed out after 0.1 s"
    assert not Ledger.objects.exists()


def test_a_coroutine_function_cannot_be_an_atomic_task(registry: Any) -> None:
    with pytest.raises(InvalidTask, match="Django has no async transactions"):
        job(atomic=True)(acompletes_itself.function)


@pytest.mark.django_db
def test_run_jobs_runs_atomic_tasks_within_a_test_with_a_transaction() -> None:
    atomic_write.defer("once")
    completes_itself.defer("twice")
    assert [(finished_job.status, finished_job.result) for finished_job in run_jobs()] == [
        ("completed", "once"),
        ("completed", "by hand"),
    ]
    assert Ledger.objects.count() == 2


# A task that calls `context.complete()` itself


def test_complete_commits_the_job_with_what_the_task_wrote(run_job: RunJob) -> None:
    finished_job, attempt = run_job(completes_itself, "once")
    assert (finished_job.status, finished_job.result, attempt.is_written) == ("completed", "by hand", True)
    assert was_committed_with_its_ledger_row(finished_job)


def test_a_task_that_raises_after_it_completed_its_job_changes_nothing(
    run_job: RunJob, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        finished_job, _ = run_job(completes_itself, "once", then="raise")
    assert (finished_job.status, finished_job.result, finished_job.errors) == ("completed", "by hand", [])
    assert "raised after completion" in caplog.text
    assert 'error="ValueError: afterwards' in caplog.text


def test_a_job_is_not_completed_if_its_call_of_complete_is_rolled_back(run_job: RunJob) -> None:
    finished_job, attempt = run_job(completes_itself, "once", then="roll back")
    assert (finished_job.status, finished_job.result, attempt.is_written) == ("completed", "returned", False)
    assert not Ledger.objects.exists()


def test_complete_under_a_lost_lease_raises(run_job: RunJob) -> None:
    finished_job, attempt = run_job(completes_itself, "once", then="lose before")
    assert attempt.outcome.error is not None
    assert attempt.outcome.error["exception"] == f"{LeaseLost.__module__}.LeaseLost"
    assert finished_job.status == "queued"
    assert not Ledger.objects.exists()


def test_complete_outside_of_a_transaction_is_refused(run_job: RunJob) -> None:
    finished_job, _ = run_job(completes_itself, "once", then="without a block")
    assert finished_job.last_error.startswith("CannotComplete: complete() must share a transaction")


def test_complete_in_an_atomic_task_is_refused(run_job: RunJob) -> None:
    finished_job, _ = run_job(atomic_completes_itself)
    assert finished_job.last_error.startswith("CannotComplete: The task is atomic")


@pytest.mark.django_db
def test_complete_is_refused_on_a_context_that_was_not_made_by_a_worker() -> None:
    context = JobContext(1, 1, 1, queue_name="default", worker="me", database="default")
    with transaction.atomic(), pytest.raises(CannotComplete, match="No worker runs this job"):
        context.complete()


def test_a_coroutine_may_complete_its_job_in_a_thread(worker_thread: StartWorker) -> None:
    finished_job = acompletes_itself.defer()
    worker_thread(max_jobs=1).wait()
    finished_job.refresh_from_db()
    assert (finished_job.status, finished_job.result) == ("completed", "from a coroutine")


def test_an_atomic_task_whose_worker_was_killed_has_its_effect_only_once(runworker: Callable[..., ManagePy]) -> None:
    finished_job = atomic_dies_once.defer()
    runworker()
    wait_for_statuses(completed=1)
    finished_job.refresh_from_db()
    assert (finished_job.attempts, Ledger.objects.count()) == (2, 1)

"""`CancelCheck` in a worker: a running job that is cancelled ends within a second. Other jobs run on."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.dispatch import Signal

from django_skipqueue.jobs.registry import THREADS
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.signals import job_cancelled, job_completed, lease_lost
from django_skipqueue.values.records import NEVER, LeaseRef
from django_skipqueue.worker import watchers as cancel_check
from django_skipqueue.worker.watchers import CANCEL_CHECK_SECONDS, CancelCheck

from ..app.jobs import noop
from ..app.models import Ledger
from ..app.waiting import DEADLINE, wait_until
from ..app.worker_jobs import acancellable, apass_gate, atomic_gate, cancellable, completes_itself_and_stays, pass_gate
from ..harness.processes import ManagePy, wait_for_statuses

store = Store("default")

StartWorker = Callable[..., Any]
RecordSignal = Callable[[Signal], list[dict[str, Any]]]

JOBS = """
    import time

    from django_skipqueue import job


    @job
    def ignores_everything():
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                pass
"""


@pytest.mark.parametrize("task", [cancellable, acancellable])
def test_a_running_job_that_is_cancelled_is_interrupted_and_sends_job_cancelled(
    task: Any, worker_thread: StartWorker, gates: Any, record_signal: RecordSignal
) -> None:
    cancelled_events, lost_events = record_signal(job_cancelled), record_signal(lease_lost)
    running_job = task.defer("g")
    worker_thread()
    wait_until(lambda: gates["g"].inside)
    assert store.cancel([running_job.pk], reason="not wanted").keys() == {running_job.pk}
    wait_until(lambda: not gates["g"].inside, deadline=10)  # one second, and some more on a busy machine
    [event] = wait_until(lambda: cancelled_events)
    attempt = event["attempt"]
    assert (attempt.job.id, attempt.outcome.status, attempt.outcome.last_error) == (
        running_job.pk,
        "discarded",
        "not wanted",
    )
    assert not lost_events
    assert Ledger.objects.get().entry == "cancelled: True"
    running_job.refresh_from_db()
    assert (running_job.status, running_job.last_error) == ("discarded", "not wanted")
    (error,) = running_job.errors
    assert error["exception"] == "django_skipqueue.exceptions.JobCancelled"
    assert f"in {task.__name__}\n" in error["traceback"]


def test_other_jobs_of_the_worker_complete_although_one_is_cancelled(worker_thread: StartWorker, gates: Any) -> None:
    cancelled_job = cancellable.defer("cancelled")
    other_jobs = [pass_gate.defer("open"), apass_gate.defer("open")]
    worker_thread()
    wait_until(lambda: gates["cancelled"].inside and gates["open"].inside == 2)
    assert cancelled_job.cancel()
    wait_until(lambda: not gates["cancelled"].inside)
    gates["open"].open()
    wait_for_statuses(discarded=1, completed=2)
    assert {Job.objects.get(pk=job.pk).attempts for job in other_jobs} == {1}


def test_a_claimed_job_that_is_cancelled_before_it_begins_never_runs(worker_thread: StartWorker, gates: Any) -> None:
    pass_gate.defer("busy")
    waiting_job = cancellable.defer("waiting")
    third_job = noop.defer()
    # The worker claims two jobs ahead, which wait behind the running job.
    worker = worker_thread(
        concurrency=1,
        prepare=_claim_two_jobs_ahead,
    )
    wait_until(lambda: gates["busy"].inside and len(worker.worker.in_flight.jobs) == 3)
    assert waiting_job.cancel()
    wait_until(lambda: len(worker.worker.in_flight.jobs) == 2)
    gates["busy"].open()
    wait_for_statuses(completed=2, discarded=1)
    assert not gates["waiting"].came
    third_job.refresh_from_db()
    assert third_job.attempts == 1


def _claim_two_jobs_ahead(worker: Any) -> None:
    worker.in_flight.claiming.capacities[THREADS].prefetch = lambda now: 2
    worker.in_flight.release_surplus = lambda: None


def test_the_writes_of_a_cancelled_atomic_task_are_rolled_back(
    worker_thread: StartWorker, gates: Any, record_signal: RecordSignal
) -> None:
    cancelled_events = record_signal(job_cancelled)
    running_job = atomic_gate.defer("g")
    worker_thread()
    wait_until(lambda: gates["g"].inside)
    assert running_job.cancel("no")
    gates["g"].open()
    wait_until(lambda: cancelled_events)
    assert not Ledger.objects.exists()


def test_a_job_that_completes_after_its_cancel_sends_job_cancelled(
    worker_thread: StartWorker, gates: Any, record_signal: RecordSignal
) -> None:
    cancelled_events, lost_events = record_signal(job_cancelled), record_signal(lease_lost)
    running_job = pass_gate.defer("g")
    worker_thread(prepare=lambda worker: setattr(worker.in_flight.cancel_check, "drop_lost", lambda refs: None))
    wait_until(lambda: gates["g"].inside)
    assert running_job.cancel("no")
    gates["g"].open()
    [event] = wait_until(lambda: cancelled_events)
    assert event["attempt"].outcome.last_error == "no"
    assert not lost_events


def test_a_running_job_that_was_recovered_is_interrupted_and_sends_lease_lost(
    worker_thread: StartWorker, gates: Any, record_signal: RecordSignal
) -> None:
    cancelled_events, lost_events = record_signal(job_cancelled), record_signal(lease_lost)
    cancellable.defer("g")
    worker = worker_thread(queue_names=("default",))
    wait_until(lambda: gates["g"].inside)
    Job.objects.all().update(queue_name="elsewhere")  # so that this worker does not claim it again
    assert store.recover(worker_ids=[worker.id])
    wait_until(lambda: lost_events)
    assert not cancelled_events
    assert Ledger.objects.get().entry == "cancelled: True"


@pytest.mark.parametrize("is_kept", [True, False], ids=["row kept", "row deleted at once"])
def test_a_task_that_completed_its_job_itself_is_not_interrupted(
    worker_thread: StartWorker, gates: Any, record_signal: RecordSignal, is_kept: bool
) -> None:
    completed_events = record_signal(job_completed)
    finished_job = completes_itself_and_stays.defer("g")
    worker = worker_thread()
    wait_until(lambda: gates["g"].inside)
    if not is_kept:
        Job.objects.filter(pk=finished_job.pk).delete()
    checks: list[list[LeaseRef]] = []
    cancel_check = worker.worker.in_flight.cancel_check
    drop_lost = cancel_check.drop_lost

    def drop_and_count(refs: list[LeaseRef]) -> None:
        drop_lost(refs)
        checks.append(refs)

    cancel_check.drop_lost = drop_and_count
    wait_until(lambda: len(checks) >= 2)
    gates["g"].open()
    wait_until(lambda: completed_events)
    assert Ledger.objects.get().entry == "not interrupted"
    if is_kept:
        finished_job.refresh_from_db()
        assert finished_job.status == "completed"


def test_a_task_that_ignores_its_cancel_is_logged_and_its_worker_is_replaced(
    runworker: Callable[..., ManagePy],
) -> None:
    stuck_job = Job.objects.enqueue("extra.jobs.ignores_everything")
    worker = runworker(jobs=JOBS)
    wait_for_statuses(running=1)
    assert store.cancel([stuck_job.pk])
    for event in ("job stuck ", "job cancelled ", "worker recycled"):
        worker.wait_for(event, deadline=40)
    lines = worker.log.splitlines()
    for event in ("job stuck ", "job cancelled "):
        line = next(line for line in lines if event in line)
        assert f"task=extra.jobs.ignores_everything id={stuck_job.pk} " in line
        assert "Cancelled by hand." in line
        (seconds,) = re.findall(r"ran=([0-9.]+)s", line)
        assert float(seconds) >= 5
        assert ("in ignores_everything" in line) == (event == "job stuck ")
    assert "lease lost" not in worker.log
    stuck_job.refresh_from_db()
    assert stuck_job.status == "discarded"
    (error,) = stuck_job.errors
    assert "in ignores_everything" in error["traceback"]


def test_only_jobs_that_already_ran_at_the_last_check_are_checked() -> None:
    running_leases: set[LeaseRef] = set()
    checked_leases: list[Sequence[LeaseRef]] = []
    check = CancelCheck(lambda: running_leases, checked_leases.append)
    assert check.due_at == NEVER, "no job runs"
    # Leases (job id, number) of the jobs that run now; leases that are then checked.
    for leases_now, expected_checks in (
        ({(1, 1)}, []),
        ({(1, 1), (2, 1)}, [[(1, 1)]]),
        ({(2, 1)}, [[(2, 1)]]),
        ({(2, 2)}, []),
    ):
        running_leases = leases_now
        checked_leases.clear()
        check.run(100.0)
        assert checked_leases == expected_checks
        assert check.due_at == 100.0 + CANCEL_CHECK_SECONDS


def test_no_check_is_made_while_jobs_are_short(worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    # An interval that 200 short jobs do not reach, even on a busy machine.
    monkeypatch.setattr(cancel_check, "CANCEL_CHECK_SECONDS", DEADLINE)
    checked_leases: list[Any] = []

    def record_checks(worker: Any) -> None:
        worker.in_flight.cancel_check.drop_lost = checked_leases.extend

    noop.defer_many([{}] * 200)
    worker = worker_thread(prepare=record_checks, max_jobs=200)
    worker.wait()
    assert checked_leases == []

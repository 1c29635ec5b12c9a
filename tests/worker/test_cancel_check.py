"""A running job that is cancelled ends within a second and is reported as cancelled. Other jobs run on."""

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

Start = Callable[..., Any]
Sent = Callable[[Signal], list[dict[str, Any]]]

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
def test_a_running_job_that_is_cancelled_ends_soon_and_is_reported_as_cancelled(
    task: Any, worker_thread: Start, gates: Any, sent: Sent
) -> None:
    cancelled, lost = sent(job_cancelled), sent(lease_lost)
    running = task.defer("g")
    worker_thread()
    wait_until(lambda: gates["g"].inside)
    assert store.cancel([running.pk], reason="not wanted").keys() == {running.pk}
    wait_until(lambda: not gates["g"].inside, deadline=10)  # a second, and what a loaded machine adds
    [event] = wait_until(lambda: cancelled)
    attempt = event["attempt"]
    assert (attempt.job.id, attempt.outcome.status, attempt.outcome.last_error) == (
        running.pk,
        "discarded",
        "not wanted",
    )
    assert not lost
    assert Ledger.objects.get().entry == "cancelled: True"
    running.refresh_from_db()
    assert (running.status, running.last_error) == ("discarded", "not wanted")
    (error,) = running.errors
    assert error["exception"] == "django_skipqueue.exceptions.JobCancelled"
    assert f"in {task.__name__}\n" in error["traceback"]


def test_the_neighbours_of_a_cancelled_job_end_well(worker_thread: Start, gates: Any) -> None:
    cancelled = cancellable.defer("cancelled")
    neighbours = [pass_gate.defer("open"), apass_gate.defer("open")]
    worker_thread()
    wait_until(lambda: gates["cancelled"].inside and gates["open"].inside == 2)
    assert cancelled.cancel()
    wait_until(lambda: not gates["cancelled"].inside)
    gates["open"].open()
    wait_for_statuses(discarded=1, completed=2)
    assert {Job.objects.get(pk=job.pk).attempts for job in neighbours} == {1}


def test_a_job_that_was_not_begun_is_dropped(worker_thread: Start, gates: Any) -> None:
    pass_gate.defer("busy")
    waiting = cancellable.defer("waiting")
    later = noop.defer()
    # The worker claims ahead for long: jobs wait in the pool behind the job that runs.
    worker = worker_thread(
        concurrency=1,
        prepare=_always_hold_two_more,
    )
    wait_until(lambda: gates["busy"].inside and len(worker.worker.in_flight.jobs) == 3)
    assert waiting.cancel()
    wait_until(lambda: len(worker.worker.in_flight.jobs) == 2)
    gates["busy"].open()
    wait_for_statuses(completed=2, discarded=1)
    assert not gates["waiting"].came
    later.refresh_from_db()
    assert later.attempts == 1


def _always_hold_two_more(worker: Any) -> None:
    worker.in_flight.claiming.capacities[THREADS].prefetch = lambda now: 2
    worker.in_flight.release_surplus = lambda: None


def test_what_a_cancelled_atomic_task_wrote_is_rolled_back(worker_thread: Start, gates: Any, sent: Sent) -> None:
    cancelled = sent(job_cancelled)
    running = atomic_gate.defer("g")
    worker_thread()
    wait_until(lambda: gates["g"].inside)
    assert running.cancel("no")
    gates["g"].open()
    wait_until(lambda: cancelled)
    assert not Ledger.objects.exists()


def test_an_outcome_before_the_cancel_arrives_is_reported_as_cancelled(
    worker_thread: Start, gates: Any, sent: Sent
) -> None:
    cancelled, lost = sent(job_cancelled), sent(lease_lost)
    running = pass_gate.defer("g")
    worker_thread(prepare=lambda worker: setattr(worker.in_flight.cancel_check, "drop_lost", lambda refs: None))
    wait_until(lambda: gates["g"].inside)
    assert running.cancel("no")
    gates["g"].open()
    [event] = wait_until(lambda: cancelled)
    assert event["attempt"].outcome.last_error == "no"
    assert not lost


def test_a_job_that_a_recovery_took_is_interrupted_and_reported_as_lost(
    worker_thread: Start, gates: Any, sent: Sent
) -> None:
    cancelled, lost = sent(job_cancelled), sent(lease_lost)
    cancellable.defer("g")
    worker = worker_thread(queue_names=("default",))
    wait_until(lambda: gates["g"].inside)
    Job.objects.all().update(queue_name="elsewhere")  # where this worker does not take it again
    assert store.recover(worker_ids=[worker.id])
    wait_until(lambda: lost)
    assert not cancelled
    assert Ledger.objects.get().entry == "cancelled: True"


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "pruned at once"])
def test_a_task_that_has_completed_its_job_is_left_alone(
    worker_thread: Start, gates: Any, sent: Sent, is_kept: bool
) -> None:
    completed = sent(job_completed)
    done = completes_itself_and_stays.defer("g")
    worker = worker_thread()
    wait_until(lambda: gates["g"].inside)
    if not is_kept:
        Job.objects.filter(pk=done.pk).delete()
    looks: list[list[LeaseRef]] = []
    check = worker.worker.in_flight.cancel_check
    drop_lost = check.drop_lost

    def counted(refs: list[LeaseRef]) -> None:
        drop_lost(refs)
        looks.append(refs)

    check.drop_lost = counted
    wait_until(lambda: len(looks) >= 2)
    gates["g"].open()
    wait_until(lambda: completed)
    assert Ledger.objects.get().entry == "not interrupted"
    if is_kept:
        done.refresh_from_db()
        assert done.status == "completed"


def test_code_that_ignores_a_cancel_is_logged_and_its_worker_replaced(
    runworker: Callable[..., ManagePy],
) -> None:
    stuck = Job.objects.enqueue("extra.jobs.ignores_everything")
    worker = runworker(jobs=JOBS)
    wait_for_statuses(running=1)
    assert store.cancel([stuck.pk])
    for event in ("job stuck ", "job cancelled ", "worker recycled"):
        worker.wait_for(event, deadline=40)
    lines = worker.log.splitlines()
    for event in ("job stuck ", "job cancelled "):
        line = next(line for line in lines if event in line)
        assert f"task=extra.jobs.ignores_everything id={stuck.pk} " in line
        assert "Cancelled by hand." in line
        (seconds,) = re.findall(r"ran=([0-9.]+)s", line)
        assert float(seconds) >= 5
        assert ("in ignores_everything" in line) == (event == "job stuck ")
    assert "lease lost" not in worker.log
    stuck.refresh_from_db()
    assert stuck.status == "discarded"
    (error,) = stuck.errors
    assert "in ignores_everything" in error["traceback"]


def test_only_jobs_that_were_held_at_the_last_check_are_checked() -> None:
    held: set[LeaseRef] = set()
    asked: list[Sequence[LeaseRef]] = []
    check = CancelCheck(lambda: held, asked.append)
    assert check.due_at == NEVER, "nothing is held"
    for now_held, expected in (
        ({(1, 1)}, []),
        ({(1, 1), (2, 1)}, [[(1, 1)]]),
        ({(2, 1)}, [[(2, 1)]]),
        ({(2, 2)}, []),
    ):
        held = now_held
        asked.clear()
        check.run(100.0)
        assert asked == expected
        assert check.due_at == 100.0 + CANCEL_CHECK_SECONDS


def test_short_jobs_and_an_idle_worker_ask_about_nothing(worker_thread: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long a busy machine takes for short jobs:
    monkeypatch.setattr(cancel_check, "CANCEL_CHECK_SECONDS", DEADLINE)
    asked: list[Any] = []

    def prepare(worker: Any) -> None:
        worker.in_flight.cancel_check.drop_lost = asked.extend

    noop.defer_many([{}] * 200)
    worker = worker_thread(prepare=prepare, max_jobs=200)
    worker.wait()
    assert asked == []

"""Jobs that sleep, and jobs that wait for a signal: they hold no slot, and no wake-up is lost."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F

from django_skipqueue import JobContext, by, job
from django_skipqueue.exceptions import InvalidArguments, InvalidOption, SignalTimeout
from django_skipqueue.models import Job, JobSignal, JobStep
from django_skipqueue.parts.steps import wake
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.by_hand import run, run_attempt

from ...app.sessions import Session
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, wait_for_statuses

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")
calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def add_call(entry: Any) -> Any:
    calls.append(entry)
    return entry


def reload(stale_job: Job) -> Job:
    stale_job.refresh_from_db()
    return stale_job


# Sleep


@job(takes_context=True, name="steps.sleeps")
def sleeps(context: JobContext, seconds: float = 60) -> str:
    context.step("before", add_call, "before")
    context.sleep("nap", timedelta(seconds=seconds))
    context.step("after", add_call, "after")
    return "slept"


def test_a_sleeping_job_is_scheduled_and_no_attempt_is_charged() -> None:
    sleeping_job = sleeps.defer()
    run_jobs()
    reload(sleeping_job)
    assert (sleeping_job.status, sleeping_job.attempts, calls) == ("scheduled", 0, ["before"])
    assert timedelta(seconds=55) < sleeping_job.run_after - sleeping_job.enqueued_at < timedelta(seconds=70)
    run_jobs(until=timedelta(seconds=50))
    assert calls == ["before"]
    run_jobs(until=timedelta(seconds=70))
    assert (reload(sleeping_job).status, sleeping_job.result, calls) == ("completed", "slept", ["before", "after"])


def test_a_recovered_job_goes_on_sleeping() -> None:
    sleeping_job = sleeps.defer()
    run_jobs()
    Job.objects.update(run_after=F("enqueued_at"))  # as a recovery does, which makes the job due at once
    run_jobs()
    assert reload(sleeping_job).status == "scheduled"
    assert sleeping_job.run_after - sleeping_job.enqueued_at > timedelta(seconds=55)


@pytest.mark.parametrize("verb", ["run_now", "reschedule"])
def test_an_operator_ends_a_sleep(verb: str) -> None:
    sleeping_job = sleeps.defer()
    run_jobs()
    assert sleeping_job.run_now() if verb == "run_now" else sleeping_job.reschedule(timedelta(0))
    run_jobs()
    assert reload(sleeping_job).status == "completed"


def test_a_sleep_of_zero_seconds_goes_on_at_once() -> None:
    deferred_job = sleeps.defer(0)
    run_jobs()
    assert reload(deferred_job).status == "completed"


@job(takes_context=True, name="steps.sleeps_in_transaction")
def sleeps_in_transaction(context: JobContext, method: str) -> None:
    with transaction.atomic():
        context.sleep("nap", 1) if method == "sleep" else context.wait("nap")


@pytest.mark.parametrize("method", ["sleep", "wait"])
def test_a_sleep_or_wait_in_a_transaction_is_refused(method: str) -> None:
    sleeps_in_transaction.defer(method)
    with pytest.raises(InvalidOption, match="would roll back the transaction"):
        run_jobs(raise_errors=True)


@job(takes_context=True, name="steps.swallows")
def swallows(context: JobContext) -> str:
    try:
        context.sleep("nap", 60)
    except BaseException:
        calls.append("caught")
    return "went on"


def test_a_job_sleeps_even_if_its_task_catches_the_end_of_its_attempt() -> None:
    deferred_job = swallows.defer()
    run_jobs()
    assert (reload(deferred_job).status, calls) == ("scheduled", ["caught"])


# Signals


@job(takes_context=True, name="steps.waits")
def waits(context: JobContext, timeout: float | None = None) -> Any:
    context.step("before", add_call, "before")
    answer = context.wait("approved", timeout=timeout)
    context.step("after", add_call, "after")
    return answer


def defer_and_wait(**options: Any) -> Job:
    """A job that has run until it waits for its signal."""
    waiting_job = waits.defer(**options)
    run_jobs()
    assert (reload(waiting_job).status, waiting_job.gate, waiting_job.attempts) == ("blocked", "held", 0)
    return waiting_job


def test_a_job_waits_for_its_signal() -> None:
    waiting_job = defer_and_wait()
    assert waiting_job.signal("approved", {"by": "Ada"})
    run_jobs()
    assert (reload(waiting_job).status, waiting_job.result, waiting_job.held) == ("completed", {"by": "Ada"}, None)
    assert calls == ["before", "after"]
    assert JobSignal.objects.get().taken_at is not None


def test_a_signal_that_comes_before_the_wait_is_kept() -> None:
    deferred_job = waits.defer()
    assert deferred_job.signal("approved", None)
    run_jobs()
    assert (reload(deferred_job).status, deferred_job.result) == ("completed", None)


def test_a_second_signal_with_the_same_name_is_refused() -> None:
    waiting_job = defer_and_wait()
    assert waiting_job.signal("approved", 1)
    assert not waiting_job.signal("approved", 2)
    run_jobs()
    assert reload(waiting_job).result == 1
    assert not waiting_job.signal("approved", 3)  # the job is finished
    assert not waiting_job.signal("another", 3)


def test_a_signal_with_another_name_does_not_wake_the_job() -> None:
    waiting_job = defer_and_wait()
    assert waiting_job.signal("other", 1)
    run_jobs()
    assert reload(waiting_job).status == "blocked"


def test_a_signal_is_sent_with_the_commit_of_its_transaction() -> None:
    waiting_job = defer_and_wait()
    with transaction.atomic():
        assert waiting_job.signal("approved", 1)
        transaction.set_rollback(True)
    run_jobs()
    assert reload(waiting_job).status == "blocked"
    with transaction.atomic():
        assert Job.objects.by_handle(str(waiting_job.pk)).signal("approved", 2)
        assert reload(waiting_job).status == "blocked"  # the sender locks and writes no job before its commit
    assert reload(waiting_job).status == "queued"


def test_a_job_that_is_run_without_a_worker_waits_for_its_signal() -> None:
    deferred_job = waits.defer()
    [claimed_job] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_job)
    assert (claimed_job.status, reload(deferred_job).status, deferred_job.attempts) == ("blocked", "blocked", 0)
    assert deferred_job.signal("approved", 1)
    [claimed_job] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed_job)
    assert (reload(deferred_job).status, deferred_job.result) == ("completed", 1)


def test_a_query_set_sends_a_signal_to_each_of_its_jobs() -> None:
    three_jobs = [defer_and_wait(), defer_and_wait(), waits.defer()]
    assert Job.objects.filter(task="steps.waits").signal("approved", 1) == 3
    assert Job.objects.filter(task="steps.waits").signal("approved", 1) == 0
    run_jobs()
    assert [reload(waiting_job).result for waiting_job in three_jobs] == [1, 1, 1]


def test_async_code_can_send_signals() -> None:
    waiting_job, second_job = defer_and_wait(), defer_and_wait()
    assert async_to_sync(waiting_job.asignal)("approved", 1)
    assert async_to_sync(Job.objects.filter(pk=second_job.pk).asignal)("approved", 1) == 1


@pytest.mark.parametrize(
    ("arguments", "error_class"),
    [
        (("",), InvalidOption),
        ((5,), InvalidOption),
        (("a", {1}), InvalidArguments),
        (("a", "x" * 2_000_000), InvalidArguments),
    ],
)
def test_an_invalid_signal_is_refused(arguments: Any, error_class: type[Exception]) -> None:
    deferred_job = waits.defer()
    with pytest.raises(error_class):
        deferred_job.signal(*arguments)
    with pytest.raises(error_class):
        Job.objects.all().signal(*arguments)


# Timeouts


@job(takes_context=True, name="steps.times_out")
def times_out(context: JobContext, timeout: float) -> str:
    try:
        context.wait("approved", timeout=timeout)
    except SignalTimeout as error:
        calls.append(str(error))
    if len(calls) == 1:
        raise ValueError("after the timeout")
    return "timed out"


def test_a_wait_that_timed_out_is_over_in_all_later_attempts() -> None:
    deferred_job = times_out.defer(60)
    run_jobs(until=timedelta(seconds=50))
    assert reload(deferred_job).status == "blocked"
    run_jobs(until=timedelta(seconds=61))  # the timeout is over, but the retry of the job is due later
    assert reload(deferred_job).signal("approved", 1)  # too late: the task has gone on without it
    run_jobs(include_scheduled=True)
    assert (reload(deferred_job).status, deferred_job.result) == ("completed", "timed out")
    assert calls == ["The signal 'approved' did not come in time."] * 2


def test_new_code_can_add_a_timeout_to_a_waiting_job() -> None:
    deferred_job = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    run_attempt(Executor(worker="w", database="default"), claimed)
    assert store.recover(worker_ids=["w"])  # before the settle
    Job.objects.update(kwargs={"timeout": 60})  # as if a new version of the code had added it
    run_jobs()
    assert reload(deferred_job).status == "blocked"
    run_jobs(until=timedelta(seconds=70))
    assert "did not come in time" in reload(deferred_job).last_error


def test_a_wait_with_a_timeout_of_zero_does_not_wait() -> None:
    deferred_job = times_out.defer(0)
    run_jobs(include_scheduled=True)
    assert reload(deferred_job).result == "timed out"


def test_a_retry_after_an_uncaught_timeout_takes_a_late_signal() -> None:
    deferred_job = waits.defer(timeout=0)
    run_jobs()
    assert (reload(deferred_job).status, deferred_job.attempts) == ("failed", 1)
    assert deferred_job.retry()
    assert deferred_job.signal("approved", "late")
    run_jobs()
    assert (reload(deferred_job).status, deferred_job.result) == ("completed", "late")


@job(takes_context=True, name="steps.goes_on_without", max_attempts=1)
def goes_on_without(context: JobContext) -> None:
    try:
        calls.append(context.wait("approved", timeout=0))
    except SignalTimeout:
        calls.append("without")
    context.step("mail", add_call, "mail")
    if calls.count("mail") < 2:
        raise ValueError


def test_a_caught_timeout_stays_recorded_when_a_later_step_is_retried() -> None:
    deferred_job = goes_on_without.defer()
    run_jobs()
    assert reload(deferred_job).status == "failed"
    assert deferred_job.retry_from("mail")
    assert deferred_job.signal("approved", "late")
    run_jobs()
    assert (reload(deferred_job).status, calls) == ("completed", ["without", "mail", "without", "mail"])


# Jobs that are cancelled, failed or deleted while they wait


def test_a_waiting_job_waits_again_after_it_was_cancelled_and_retried() -> None:
    waiting_job = defer_and_wait()
    assert waiting_job.cancel()
    assert not waiting_job.signal("approved", 1)
    assert waiting_job.retry()
    run_jobs()
    assert reload(waiting_job).status == "blocked"
    assert waiting_job.signal("approved", 2)
    run_jobs()
    assert (reload(waiting_job).status, waiting_job.result) == ("completed", 2)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_cancelled_job_no_longer_waits(verb: str) -> None:
    waiting_job = defer_and_wait(timeout=60)
    assert getattr(waiting_job, verb)()
    assert (reload(waiting_job).status, waiting_job.held) == ("discarded", None)
    assert not JobStep.objects.filter(is_waiting=True).exists()
    assert store.next_due() is None


def test_the_wait_of_a_job_that_failed_in_the_meantime_is_ended_at_its_timeout() -> None:
    waiting_job = defer_and_wait(timeout=60)
    # as if too many of its workers had died
    Job.objects.update(status="failed", gate=None, finished_at=F("enqueued_at"))
    JobStep.objects.filter(name="approved").update(wakes_at=F("started_at"))  # its timeout is over
    store.admit()
    assert (reload(waiting_job).status, waiting_job.held) == ("failed", None)
    assert not JobStep.objects.filter(is_waiting=True).exists()


def test_the_gate_deletes_waits_and_signals_of_deleted_jobs() -> None:
    waiting_job, job_with_a_signal = defer_and_wait(timeout=60), waits.defer()
    assert job_with_a_signal.signal("approved", 1)
    JobStep.objects.filter(name="approved").update(wakes_at=F("started_at"))  # its timeout is over
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM skipqueue_job WHERE id = ANY (%s)", [[waiting_job.pk, job_with_a_signal.pk]])
    store.admit()
    assert not JobStep.objects.filter(is_waiting=True).exists()
    assert not JobSignal.objects.exists()


@job(takes_context=True, name="steps.in_sequence", sequence=by("key"))
def in_sequence(context: JobContext, key: str, number: int, waits: bool) -> None:
    calls.append((number, "begins"))
    if waits:
        context.wait("go")
    else:
        context.sleep("nap", 60)
    calls.append((number, "ends"))


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_that_sleeps_or_waits_keeps_its_place_in_its_sequence(waits: bool) -> None:
    first, second = in_sequence.defer("k", 1, waits), in_sequence.defer("k", 2, waits)
    run_jobs()
    assert (reload(second).status, reload(first).status) == ("blocked", "blocked" if waits else "scheduled")
    assert calls == [(1, "begins")]
    if waits:
        assert first.signal("go")
        assert second.signal("go")
    else:
        first.run_now()
    run_jobs(include_scheduled=True)
    attempts_of_second = [(2, "begins")] if waits else [(2, "begins"), (2, "begins")]  # its signal has come before
    assert calls == [(1, "begins"), (1, "begins"), (1, "ends"), *attempts_of_second, (2, "ends")]


@job(takes_context=True, name="steps.unique", unique_key="steps-unique")
def unique(context: JobContext) -> None:
    context.wait("go")


def test_a_waiting_job_keeps_its_unique_key() -> None:
    deferred_job = unique.defer()
    run_jobs()
    second_job = unique.defer()
    assert (second_job.pk, second_job.created) == (deferred_job.pk, False)


# No wake-up is lost, whatever the interleaving


def test_a_signal_sent_between_the_wait_and_its_settle_wakes_the_job() -> None:
    """When the signal is sent, the job still runs, so the sender does not wake it. The gate does later."""
    deferred_job = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    attempt = run_attempt(Executor(worker="w", database="default"), claimed)
    assert attempt.outcome.is_held
    assert reload(deferred_job).status == "running"
    assert deferred_job.signal("approved", 1)
    assert reload(deferred_job).status == "running"
    assert store.settle([attempt.settlement])
    assert reload(deferred_job).status == "blocked"
    assert store.admit().by_queue == {"default": 1}
    run_jobs()
    assert reload(deferred_job).result == 1


def test_a_recovered_job_takes_a_signal_that_was_sent_after_its_wait() -> None:
    deferred_job = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    run_attempt(Executor(worker="w", database="default"), claimed)
    assert store.recover(worker_ids=["w"])  # before the settle
    assert deferred_job.signal("approved", 1)
    run_jobs()
    assert (reload(deferred_job).status, deferred_job.result, deferred_job.held) == ("completed", 1, None)


def test_the_gate_checks_all_signals_page_by_page() -> None:
    jobs_before = [waits.defer() for _ in range(4)]
    for job_before in jobs_before:
        assert job_before.signal("other", 1)
    waiting_job = defer_and_wait()
    with connection.cursor() as cursor:  # a signal whose sender died right after its commit
        cursor.execute(
            "INSERT INTO skipqueue_signal (job_id, name, payload, sent_at) VALUES (%s, 'approved', '1', now())",
            [waiting_job.pk],
        )
    gate = wake.SignalGate()
    pages = 0
    while not gate.admit(store, limit=2).by_queue:
        pages += 1
        assert pages < 5
    assert pages == 2, "two pages have the four signals that no job waits for"
    assert reload(waiting_job).status == "queued"


def test_a_signal_is_sent_although_the_row_of_the_job_is_locked(session: Callable[[], Session]) -> None:
    waiting_job, other_session = defer_and_wait(), session()
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=waiting_job.pk)
        sending = other_session.start(waiting_job.signal, "approved", 1)
        assert sending.result(timeout=20)
        assert reload(waiting_job).status == "blocked"
    assert store.admit().by_queue == {"default": 1}


WAITS = """
    import os, signal
    from django_skipqueue import job
    from tests.app.models import Ledger

    @job(takes_context=True, max_attempts=3)
    def waits(context, kills):
        context.sleep("nap", 0.2)
        if kills and context.attempt == 1 and not Ledger.objects.filter(entry=f"killed {context.job_id}").exists():
            Ledger.objects.create(entry=f"killed {context.job_id}")
            os.kill(os.getpid(), signal.SIGKILL)
        answers = []
        for number in range(3):
            answers.append(context.wait(f"signal {number}"))
        return answers
"""


def test_no_signal_is_lost_while_workers_are_killed(runworker: Callable[..., ManagePy]) -> None:
    runworker("--processes", "2", "--concurrency", "2", "--poll-interval", "0.2", jobs=WAITS)
    waiting_jobs = [Job.objects.enqueue("extra.jobs.waits", args=[number % 4 == 0]) for number in range(12)]

    def send_signals() -> None:
        for number in range(3):
            for waiting_job in waiting_jobs:
                assert waiting_job.signal(f"signal {number}", [waiting_job.pk, number])
                time.sleep(0.02)
        connection.close()

    sender = threading.Thread(target=send_signals)
    sender.start()
    sender.join()
    wait_for_statuses(completed=12)
    for waiting_job in waiting_jobs:
        assert reload(waiting_job).result == [[waiting_job.pk, number] for number in range(3)]
    assert not JobSignal.objects.filter(taken_at=None).exists()
    wait_until(lambda: not JobStep.objects.filter(is_waiting=True).exists())

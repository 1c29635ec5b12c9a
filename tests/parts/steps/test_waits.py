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


def note(entry: Any) -> Any:
    calls.append(entry)
    return entry


def again(made: Job) -> Job:
    made.refresh_from_db()
    return made


# Sleep


@job(takes_context=True, name="steps.sleeps")
def sleeps(context: JobContext, seconds: float = 60) -> str:
    context.step("before", note, "before")
    context.sleep("nap", timedelta(seconds=seconds))
    context.step("after", note, "after")
    return "slept"


def test_a_sleeping_job_is_scheduled_and_no_attempt_is_charged() -> None:
    made = sleeps.defer()
    run_jobs()
    again(made)
    assert (made.status, made.attempts, calls) == ("scheduled", 0, ["before"])
    assert timedelta(seconds=55) < made.run_after - made.enqueued_at < timedelta(seconds=70)
    run_jobs(until=timedelta(seconds=50))
    assert calls == ["before"]
    run_jobs(until=timedelta(seconds=70))
    assert (again(made).status, made.result, calls) == ("completed", "slept", ["before", "after"])


def test_a_recovered_job_goes_on_sleeping() -> None:
    made = sleeps.defer()
    run_jobs()
    Job.objects.update(run_after=F("enqueued_at"))  # as a recovery does, which makes the job due at once
    run_jobs()
    assert again(made).status == "scheduled"
    assert made.run_after - made.enqueued_at > timedelta(seconds=55)


@pytest.mark.parametrize("verb", ["run_now", "reschedule"])
def test_an_operator_ends_a_sleep(verb: str) -> None:
    made = sleeps.defer()
    run_jobs()
    assert made.run_now() if verb == "run_now" else made.reschedule(timedelta(0))
    run_jobs()
    assert again(made).status == "completed"


def test_a_sleep_of_zero_seconds_goes_on_at_once() -> None:
    made = sleeps.defer(0)
    run_jobs()
    assert again(made).status == "completed"


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
    made = swallows.defer()
    run_jobs()
    assert (again(made).status, calls) == ("scheduled", ["caught"])


# Signals


@job(takes_context=True, name="steps.waits")
def waits(context: JobContext, timeout: float | None = None) -> Any:
    context.step("before", note, "before")
    answer = context.wait("approved", timeout=timeout)
    context.step("after", note, "after")
    return answer


def waiting(**options: Any) -> Job:
    made = waits.defer(**options)
    run_jobs()
    assert (again(made).status, made.gate, made.attempts) == ("blocked", "held", 0)
    return made


def test_a_job_waits_for_its_signal() -> None:
    made = waiting()
    assert made.signal("approved", {"by": "Ada"})
    run_jobs()
    assert (again(made).status, made.result, made.held) == ("completed", {"by": "Ada"}, None)
    assert calls == ["before", "after"]
    assert JobSignal.objects.get().taken_at is not None


def test_a_signal_that_comes_before_the_wait_is_kept() -> None:
    made = waits.defer()
    assert made.signal("approved", None)
    run_jobs()
    assert (again(made).status, made.result) == ("completed", None)


def test_a_second_signal_with_the_same_name_is_refused() -> None:
    made = waiting()
    assert made.signal("approved", 1)
    assert not made.signal("approved", 2)
    run_jobs()
    assert again(made).result == 1
    assert not made.signal("approved", 3)  # the job is finished
    assert not made.signal("another", 3)


def test_a_signal_with_another_name_does_not_wake_the_job() -> None:
    made = waiting()
    assert made.signal("other", 1)
    run_jobs()
    assert again(made).status == "blocked"


def test_a_signal_is_sent_with_the_commit_of_its_transaction() -> None:
    made = waiting()
    with transaction.atomic():
        assert made.signal("approved", 1)
        transaction.set_rollback(True)
    run_jobs()
    assert again(made).status == "blocked"
    with transaction.atomic():
        assert Job.objects.by_handle(str(made.pk)).signal("approved", 2)
        assert again(made).status == "blocked"  # the sender locks and writes no job before its commit
    assert again(made).status == "queued"


def test_a_job_that_is_run_without_a_worker_waits_for_its_signal() -> None:
    made = waits.defer()
    [claimed] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed)
    assert (claimed.status, again(made).status, made.attempts) == ("blocked", "blocked", 0)
    assert made.signal("approved", 1)
    [claimed] = Job.objects.claim(queue_names=["default"], worker_id="w")
    run(claimed)
    assert (again(made).status, made.result) == ("completed", 1)


def test_a_query_set_sends_a_signal_to_each_of_its_jobs() -> None:
    made = [waiting(), waiting(), waits.defer()]
    assert Job.objects.filter(task="steps.waits").signal("approved", 1) == 3
    assert Job.objects.filter(task="steps.waits").signal("approved", 1) == 0
    run_jobs()
    assert [again(each).result for each in made] == [1, 1, 1]


def test_async_code_can_send_signals() -> None:
    made, other = waiting(), waiting()
    assert async_to_sync(made.asignal)("approved", 1)
    assert async_to_sync(Job.objects.filter(pk=other.pk).asignal)("approved", 1) == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("",), InvalidOption),
        ((5,), InvalidOption),
        (("a", {1}), InvalidArguments),
        (("a", "x" * 2_000_000), InvalidArguments),
    ],
)
def test_an_invalid_signal_is_refused(arguments: Any, kind: type[Exception]) -> None:
    made = waits.defer()
    with pytest.raises(kind):
        made.signal(*arguments)
    with pytest.raises(kind):
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
    made = times_out.defer(60)
    run_jobs(until=timedelta(seconds=50))
    assert again(made).status == "blocked"
    run_jobs(until=timedelta(seconds=61))  # the timeout is over, but the retry of the job is due later
    assert again(made).signal("approved", 1)  # too late: the task has gone on without it
    run_jobs(include_scheduled=True)
    assert (again(made).status, made.result) == ("completed", "timed out")
    assert calls == ["The signal 'approved' did not come in time."] * 2


def test_new_code_can_add_a_timeout_to_a_waiting_job() -> None:
    made = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    run_attempt(Executor(worker="w", database="default"), claimed)
    assert store.recover(worker_ids=["w"])  # before the settle
    Job.objects.update(kwargs={"timeout": 60})  # as if a new version of the code had added it
    run_jobs()
    assert again(made).status == "blocked"
    run_jobs(until=timedelta(seconds=70))
    assert "did not come in time" in again(made).last_error


def test_a_wait_with_a_timeout_of_zero_does_not_wait() -> None:
    made = times_out.defer(0)
    run_jobs(include_scheduled=True)
    assert again(made).result == "timed out"


def test_a_retry_after_an_uncaught_timeout_takes_a_late_signal() -> None:
    made = waits.defer(timeout=0)
    run_jobs()
    assert (again(made).status, made.attempts) == ("failed", 1)
    assert made.retry()
    assert made.signal("approved", "late")
    run_jobs()
    assert (again(made).status, made.result) == ("completed", "late")


@job(takes_context=True, name="steps.goes_on_without", max_attempts=1)
def goes_on_without(context: JobContext) -> None:
    try:
        calls.append(context.wait("approved", timeout=0))
    except SignalTimeout:
        calls.append("without")
    context.step("mail", note, "mail")
    if calls.count("mail") < 2:
        raise ValueError


def test_a_caught_timeout_stays_recorded_when_a_later_step_is_retried() -> None:
    made = goes_on_without.defer()
    run_jobs()
    assert again(made).status == "failed"
    assert made.retry_from("mail")
    assert made.signal("approved", "late")
    run_jobs()
    assert (again(made).status, calls) == ("completed", ["without", "mail", "without", "mail"])


# Jobs that are cancelled, failed or deleted while they wait


def test_a_waiting_job_waits_again_after_it_was_cancelled_and_retried() -> None:
    made = waiting()
    assert made.cancel()
    assert not made.signal("approved", 1)
    assert made.retry()
    run_jobs()
    assert again(made).status == "blocked"
    assert made.signal("approved", 2)
    run_jobs()
    assert (again(made).status, made.result) == ("completed", 2)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_cancelled_job_no_longer_waits(verb: str) -> None:
    made = waiting(timeout=60)
    assert getattr(made, verb)()
    assert (again(made).status, made.held) == ("discarded", None)
    assert not JobStep.objects.filter(is_waiting=True).exists()
    assert store.next_due() is None


def test_the_wait_of_a_job_that_failed_in_the_meantime_is_ended_at_its_timeout() -> None:
    made = waiting(timeout=60)
    Job.objects.update(
        status="failed", gate=None, finished_at=F("enqueued_at")
    )  # as if too many of its workers had died
    JobStep.objects.filter(name="approved").update(wakes_at=F("started_at"))
    store.admit()
    assert (again(made).status, made.held) == ("failed", None)
    assert not JobStep.objects.filter(is_waiting=True).exists()


def test_the_gate_deletes_waits_and_signals_of_deleted_jobs() -> None:
    made, other = waiting(timeout=60), waits.defer()
    assert other.signal("approved", 1)
    JobStep.objects.filter(name="approved").update(wakes_at=F("started_at"))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM skipqueue_job WHERE id = ANY (%s)", [[made.pk, other.pk]])
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
    assert (again(second).status, again(first).status) == ("blocked", "blocked" if waits else "scheduled")
    assert calls == [(1, "begins")]
    if waits:
        assert first.signal("go")
        assert second.signal("go")
    else:
        first.run_now()
    run_jobs(include_scheduled=True)
    assert calls == [(1, "begins"), (1, "begins"), (1, "ends"), (2, "begins")] + ([] if waits else [(2, "begins")]) + [
        (2, "ends")
    ]


@job(takes_context=True, name="steps.unique", unique_key="steps-unique")
def unique(context: JobContext) -> None:
    context.wait("go")


def test_a_waiting_job_keeps_its_unique_key() -> None:
    made = unique.defer()
    run_jobs()
    other = unique.defer()
    assert (other.pk, other.created) == (made.pk, False)


# No wake-up is lost, whatever the interleaving


def test_a_signal_sent_between_the_wait_and_its_settle_wakes_the_job() -> None:
    """When the signal is sent, the job still runs, so the sender does not wake it. The gate does later."""
    made = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    attempt = run_attempt(Executor(worker="w", database="default"), claimed)
    assert attempt.outcome.is_held
    assert again(made).status == "running"
    assert made.signal("approved", 1)
    assert again(made).status == "running"
    assert store.settle([attempt.settlement])
    assert again(made).status == "blocked"
    assert store.admit().by_queue == {"default": 1}
    run_jobs()
    assert again(made).result == 1


def test_a_recovered_job_takes_a_signal_that_was_sent_after_its_wait() -> None:
    made = waits.defer()
    [claimed] = store.claim(queue_names=["default"], limit=1, worker_id="w")
    run_attempt(Executor(worker="w", database="default"), claimed)
    assert store.recover(worker_ids=["w"])  # before the settle
    assert made.signal("approved", 1)
    run_jobs()
    assert (again(made).status, made.result, made.held) == ("completed", 1, None)


def test_the_gate_checks_all_signals_page_by_page() -> None:
    early = [waits.defer() for _ in range(4)]
    for each in early:
        assert each.signal("other", 1)
    made = waiting()
    with connection.cursor() as cursor:  # a signal whose sender died right after its commit
        cursor.execute(
            "INSERT INTO skipqueue_signal (job_id, name, payload, sent_at) VALUES (%s, 'approved', '1', now())",
            [made.pk],
        )
    gate = wake.SignalGate()
    looks = 0
    while not gate.admit(store, limit=2).by_queue:
        looks += 1
        assert looks < 5
    assert looks == 2
    assert again(made).status == "queued"


def test_a_signal_is_sent_although_the_row_of_the_job_is_locked(session: Callable[[], Session]) -> None:
    made, other = waiting(), session()
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=made.pk)
        sent = other.start(made.signal, "approved", 1)
        assert sent.result(timeout=20)
        assert again(made).status == "blocked"
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
    made = [Job.objects.enqueue("extra.jobs.waits", args=[number % 4 == 0]) for number in range(12)]

    def send() -> None:
        for number in range(3):
            for each in made:
                assert each.signal(f"signal {number}", [each.pk, number])
                time.sleep(0.02)
        connection.close()

    sender = threading.Thread(target=send)
    sender.start()
    sender.join()
    wait_for_statuses(completed=12)
    for each in made:
        assert again(each).result == [[each.pk, number] for number in range(3)]
    assert not JobSignal.objects.filter(taken_at=None).exists()
    wait_until(lambda: not JobStep.objects.filter(is_waiting=True).exists())

"""`OutcomeReports` sends one event for each attempt, even if the answer of the database was lost."""

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.dispatch import Signal

from django_skipqueue import signals
from django_skipqueue.events.events import AttemptsCompleted, OutcomesDropped
from django_skipqueue.models import Job
from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker import control_connection
from django_skipqueue.worker.outcomes import OutcomeReports

from ..app import jobs
from ..app.waiting import wait_until
from ..harness.observer import Remembering
from ..harness.threads import WorkerThread

StartWorker = Callable[..., WorkerThread]
ReceivedSignals = list[tuple[Signal, Attempt]]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def received_signals() -> Iterator[ReceivedSignals]:
    """The signals about outcomes that were sent, in order."""
    outcomes = [
        signals.job_completed,
        signals.job_retrying,
        signals.job_failed,
        signals.job_discarded,
        signals.job_cancelled,
        signals.lease_lost,
    ]
    received_signals: ReceivedSignals = []

    def receive(signal: Signal, attempt: Attempt, **_: Any) -> None:
        received_signals.append((signal, attempt))

    for signal in outcomes:
        signal.connect(receive)
    yield received_signals
    for signal in outcomes:
        signal.disconnect(receive)


@pytest.fixture
def first_answer_lost(monkeypatch: pytest.MonkeyPatch) -> list[Settlement]:
    """Break the connection after the first settlement is committed. Returns the outcomes that it saved."""
    monkeypatch.setattr(control_connection, "FIRST_REOPEN_DELAY", 0.05)
    exchange = Store.exchange
    lost_settlements: list[Settlement] = []

    def exchange_and_break(self: Store, settlements: Iterable[Settlement], **options: Any) -> ExchangeResult:
        batch = list(settlements)
        answer = exchange(self, batch, **options)
        if batch and not lost_settlements:
            lost_settlements.extend(batch)
            raise OperationalError("the answer was lost")
        return answer

    monkeypatch.setattr(Store, "exchange", exchange_and_break)
    return lost_settlements


@pytest.mark.parametrize(
    ("task", "signal", "status"),
    [
        (jobs.noop, signals.job_completed, "completed"),
        (jobs.discard, signals.job_discarded, "discarded"),
        (jobs.snooze, signals.job_retrying, "scheduled"),
        (jobs.ask_for_retry.using(max_attempts=2), signals.job_retrying, "scheduled"),
        (jobs.fail.using(max_attempts=1), signals.job_failed, "failed"),
    ],
    ids=["completed", "discarded", "snoozed", "retried", "failed"],
)
def test_the_signal_of_an_outcome_is_sent_although_the_answer_of_the_database_was_lost(
    task: Any,
    signal: Signal,
    status: str,
    worker_thread: StartWorker,
    received_signals: ReceivedSignals,
    first_answer_lost: list[Settlement],
) -> None:
    job = task.defer()
    worker = worker_thread(concurrency=1, poll_interval=HOUR)
    wait_until(lambda: received_signals, "a signal about the outcome")
    assert first_answer_lost
    worker.stop()
    worker.wait()
    [(sent_signal, attempt)] = received_signals
    assert sent_signal is signal
    assert attempt.outcome.status == status
    job = Job.objects.get(pk=job.pk)
    assert (job.status, len(job.errors)) == (status, status in ("failed", "discarded") or task.name.endswith("retry"))


def test_job_failed_is_sent_if_the_database_refuses_the_result_of_a_job(
    worker_thread: StartWorker, received_signals: ReceivedSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes of a refused batch are committed one by one. Then the connection breaks in the claim."""
    monkeypatch.setattr(control_connection, "FIRST_REOPEN_DELAY", 0.05)
    exchange = Store.exchange
    running_exchanges: list[list[Settlement]] = []
    failures: list[str] = []

    def break_in_the_claim(self: Store, settlements: Iterable[Settlement], **options: Any) -> ExchangeResult:
        running_exchanges.append(list(settlements))
        try:
            if len(running_exchanges) == 2 and not failures:
                failures.append("once")
                raise OperationalError("the connection is gone")
            return exchange(self, running_exchanges[-1], **options)
        finally:
            running_exchanges.pop()

    monkeypatch.setattr(Store, "exchange", break_in_the_claim)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_job ADD CONSTRAINT no_7 CHECK (result IS DISTINCT FROM '7') NOT VALID")
    try:
        job = jobs.echo.defer(7)
        worker_thread(concurrency=1, poll_interval=HOUR)
        [(signal, attempt)] = wait_until(lambda: received_signals)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT no_7")
    assert failures
    assert signal is signals.job_failed
    job.refresh_from_db()
    assert (job.status, job.last_error) == ("failed", attempt.outcome.last_error)


def test_job_cancelled_is_sent_for_a_cancelled_job_whatever_its_outcome(
    worker_thread: StartWorker, received_signals: ReceivedSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.discard.defer("by the task")
    exchange = Store.exchange

    def cancel_and_exchange(self: Store, settlements: Iterable[Settlement], **options: Any) -> ExchangeResult:
        batch = list(settlements)
        if batch:
            self.cancel([settlement.job_id for settlement in batch], reason="by hand")
        return exchange(self, batch, **options)

    monkeypatch.setattr(Store, "exchange", cancel_and_exchange)
    worker_thread(concurrency=1, poll_interval=HOUR)
    [(signal, attempt)] = wait_until(lambda: received_signals)
    assert signal is signals.job_cancelled
    assert attempt.outcome.last_error == "by hand"
    wait_until(lambda: Job.objects.get(pk=job.pk).errors, "the error of the attempt is kept")


@pytest.mark.parametrize("is_written", [False, True])
def test_a_second_outcome_of_a_recent_attempt_sends_outcomes_dropped(is_written: bool) -> None:
    """An external worker such as Celery may run a job twice. `OutcomeReports` remembers at least two attempts."""
    events: list[Any] = []
    dispatcher: Any = SimpleNamespace(send=events.append)
    observer = Remembering()
    reports = OutcomeReports(dispatcher, [observer], remembered_attempts=2)
    first_attempt, *other_attempts = (
        Attempt(
            ClaimedJob(
                id=id, lease=1, task="t", queue_name="q", args="[]", kwargs="{}", attempt=1, max_attempts=3,
                priority=0, run_after=1.0, locked_at=2.0, metadata="{}",
            ),
            COMPLETED, started=0.0, ended=0.1, worker="w", is_written=is_written,
        )
        for id in range(5)
    )  # fmt: skip
    reports.report([first_attempt], {first_attempt.job.ref}, {})
    reports.report([first_attempt, other_attempts[0]], {other_attempts[0].job.ref}, {})
    assert [(type(event), event.attempts) for event in events] == [
        (AttemptsCompleted, [first_attempt]),
        (AttemptsCompleted, [other_attempts[0]]),
        (OutcomesDropped, [first_attempt]),
    ]
    assert observer.attempts == [(AttemptsCompleted, first_attempt), (AttemptsCompleted, other_attempts[0])]
    for other_attempt in other_attempts[1:]:
        reports.report([other_attempt], {other_attempt.job.ref}, {})
    events.clear()
    reports.report([other_attempts[0], other_attempts[-1]], set(), {})
    assert (OutcomesDropped, [other_attempts[-1]]) in [(type(event), event.attempts) for event in events]
    assert (other_attempts[0] in reports.lost) is not is_written, "older attempts are forgotten"


def test_the_first_saved_outcome_is_reported_although_an_earlier_report_was_forged() -> None:
    """An external worker may set `is_written` although the outcome was not saved. The saved outcome still counts."""
    events: list[Any] = []
    dispatcher: Any = SimpleNamespace(send=events.append)
    reports = OutcomeReports(dispatcher, [Remembering()], remembered_attempts=2)
    attempt = Attempt(
        ClaimedJob(
            id=1, lease=1, task="t", queue_name="q", args="[]", kwargs="{}", attempt=1, max_attempts=3,
            priority=0, run_after=1.0, locked_at=2.0, metadata="{}",
        ),
        COMPLETED, started=0.0, ended=0.1, worker="w",
    )  # fmt: skip
    reports.report([attempt._replace(is_written=True)], set(), {})
    reports.report([attempt], {attempt.job.ref}, {})
    assert [type(event) for event in events] == [AttemptsCompleted] * 2

"""`EventDispatcher`: sends all events in order, without delaying other threads."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal

from django_skipqueue.events import sinks
from django_skipqueue.events.events import AttemptsCompleted, AttemptsFailed, Event
from django_skipqueue.events.sinks import LogSink
from django_skipqueue.exceptions import JobCancelled
from django_skipqueue.models import Worker
from django_skipqueue.signals import job_completed, job_failed
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker import dispatcher as dispatcher_module
from django_skipqueue.worker.attempts.connections import ThreadConnections
from django_skipqueue.worker.dispatcher import EventDispatcher

from ..app import jobs, worker_jobs
from ..app.models import Ledger
from ..app.waiting import DEADLINE, wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers


def make_attempt(id: int, task: str = "a.task") -> Attempt:
    job = ClaimedJob(
        id=id, lease=1, task=task, queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
        priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
    )  # fmt: skip
    return Attempt(job, COMPLETED, started=1.0, ended=2.0, worker="w")


@pytest.fixture
def dispatcher() -> Iterator[EventDispatcher]:
    dispatcher = EventDispatcher()
    yield dispatcher
    dispatcher.stop(timeout=DEADLINE)


@pytest.fixture
def connect_receiver() -> Iterator[Callable[[Signal, Callable[..., Any]], None]]:
    """Connects receivers for one test."""
    signals_and_receivers: list[tuple[Signal, Callable[..., Any]]] = []

    def connect(signal: Signal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver, weak=False)
        signals_and_receivers.append((signal, receiver))

    yield connect
    for connected_signal, receiver in signals_and_receivers:
        connected_signal.disconnect(receiver)


@dataclass(frozen=True)
class NumberedEvent(Event):
    """An event that only this module sends."""

    number: int = 0
    name: str = ""


ConnectSink = Callable[[Callable[[NumberedEvent], object]], None]


class FunctionSink:
    """A sink that calls a function for each `NumberedEvent`."""

    def __init__(self, receive: Callable[[Any], object]) -> None:
        self._receive = receive

    def wants(self, kind: type[Event]) -> bool:
        return kind is NumberedEvent

    def handle(self, event: Event, alive: Callable[[], None]) -> None:
        self._receive(event)


@pytest.fixture
def call_for_each_event(monkeypatch: pytest.MonkeyPatch) -> ConnectSink:
    """Installs a `FunctionSink` that calls the given function."""
    monkeypatch.setattr(sinks, "SINKS", sinks.SINKS.copy())
    return lambda receive: sinks.SINKS.append(FunctionSink(receive))


def test_events_are_sent_in_order(dispatcher: EventDispatcher, call_for_each_event: ConnectSink) -> None:
    received: list[int] = []
    call_for_each_event(lambda event: received.append(event.number))
    for number in range(100):
        dispatcher.send(NumberedEvent(number))
    dispatcher.stop(timeout=DEADLINE)
    assert received == list(range(100))


def test_the_outcomes_of_a_batch_reach_the_receivers_of_their_events(
    dispatcher: EventDispatcher, connect_receiver: Callable[..., None]
) -> None:
    received: list[tuple[str, int]] = []
    connect_receiver(job_completed, lambda sender, attempt, **_: received.append((sender, attempt.job.id)))
    connect_receiver(job_failed, lambda sender, attempt, **_: received.append((f"not {sender}", attempt.job.id)))
    dispatcher.send(AttemptsCompleted([make_attempt(1), make_attempt(2, "b.task")]))
    dispatcher.send(AttemptsFailed([make_attempt(3)]))
    dispatcher.stop(timeout=DEADLINE)
    assert received == [("a.task", 1), ("b.task", 2), ("not a.task", 3)]


def test_an_event_that_no_sink_wants_starts_no_thread(
    dispatcher: EventDispatcher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "SINKS", [LogSink()])  # receivers of other tests may want it
    caplog.set_level(logging.WARNING, logger="django_skipqueue")
    threads_before = set(threading.enumerate())
    dispatcher.send(AttemptsCompleted([make_attempt(1)]))
    dispatcher.send(NumberedEvent())
    assert set(threading.enumerate()) <= threads_before, "threads of other tests may have ended"
    assert dispatcher.backlog == 0


def test_a_slow_receiver_does_not_delay_the_sender(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink
) -> None:
    may_return = threading.Event()
    call_for_each_event(lambda _: may_return.wait(DEADLINE))
    for _ in range(50):
        dispatcher.send(NumberedEvent())  # if this waited for the receiver, the test would never reach `release.set()`
    assert dispatcher.backlog == 50
    may_return.set()
    wait_until(lambda: dispatcher.backlog == 0)


def test_an_interruption_that_a_receiver_raises_itself_does_not_end_the_sending(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink
) -> None:
    received: list[int] = []

    def receive(event: NumberedEvent) -> None:
        received.append(event.number)
        raise JobCancelled("by the receiver itself")

    call_for_each_event(receive)
    for number in range(3):
        dispatcher.send(NumberedEvent(number))
    wait_until(lambda: dispatcher.backlog == 0)
    assert received == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_a_receiver_does_not_stop_other_receivers(
    dispatcher: EventDispatcher,
    call_for_each_event: ConnectSink,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    received: list[int] = []

    def raise_broken_error(_: NumberedEvent) -> None:
        raise error("broken")

    call_for_each_event(lambda event: received.append(event.number))
    call_for_each_event(raise_broken_error)
    dispatcher.send(NumberedEvent(1))
    dispatcher.send(NumberedEvent(2))
    wait_until(lambda: dispatcher.backlog == 0, "all events were sent")
    assert received == [1, 2]
    assert "broken" in caplog.text


def test_an_exception_of_a_log_filter_does_not_stop_the_dispatcher(dispatcher: EventDispatcher) -> None:
    def raise_broken_error(record: logging.LogRecord) -> bool:
        raise ValueError("broken filter")

    logger = logging.getLogger("django_skipqueue.worker")
    original_level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(raise_broken_error)
    try:
        dispatcher.send(AttemptsCompleted([make_attempt(1)]))
        dispatcher.send(AttemptsCompleted([make_attempt(2)]))
        wait_until(lambda: dispatcher.backlog == 0, "all events were sent")
    finally:
        logger.removeFilter(raise_broken_error)
        logger.setLevel(original_level)


def test_stopping_waits_for_waiting_events_only_until_the_timeout(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink
) -> None:
    may_return = threading.Event()
    call_for_each_event(lambda _: may_return.wait(DEADLINE))
    dispatcher.send(NumberedEvent())
    dispatcher.stop(timeout=0.01)
    assert not may_return.is_set()
    may_return.set()


class Hanging:
    """A receiver that hangs in event 1 until `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.received: list[int] = []
        self.threads: list[threading.Thread] = []

    def receive(self, event: NumberedEvent) -> None:
        self.threads.append(threading.current_thread())
        if event.number == 1:
            self.may_end.wait(DEADLINE)
        self.received.append(event.number)


@pytest.fixture
def hanging_receiver(dispatcher: EventDispatcher, call_for_each_event: ConnectSink) -> Iterator[Hanging]:
    """A receiver that still hangs after `stop` has waited for it."""
    receiver = Hanging()
    call_for_each_event(receiver.receive)
    dispatcher.send(NumberedEvent(1))
    wait_until(lambda: receiver.threads, "the receiver was called")
    dispatcher.stop(timeout=0.01)
    yield receiver
    receiver.may_end.set()


def test_events_after_a_timed_out_stop_are_delivered_later(
    dispatcher: EventDispatcher, hanging_receiver: Hanging
) -> None:
    for number in (2, 3):
        dispatcher.send(NumberedEvent(number))
        dispatcher.stop(timeout=0.01)
    dispatcher.send(NumberedEvent(4))
    assert hanging_receiver.received == []
    hanging_receiver.may_end.set()
    wait_until(lambda: dispatcher.backlog == 0, "all events were delivered")
    assert hanging_receiver.received == [1, 2, 3, 4]
    assert len(set(hanging_receiver.threads)) == 1


def test_a_receiver_that_outlasts_a_stop_still_counts_as_hanging(
    dispatcher: EventDispatcher, hanging_receiver: Hanging
) -> None:
    dispatcher.send(NumberedEvent(2))
    dispatcher.flush(timeout=0.01)
    assert dispatcher.hangs_at < float("inf")  # the receiver of the first event still runs
    assert "receive (" in dispatcher.stack()


def test_a_thread_that_outlasts_a_stop_ends_once_the_receiver_returns(
    dispatcher: EventDispatcher, hanging_receiver: Hanging
) -> None:
    hanging_receiver.may_end.set()
    hanging_receiver.threads[0].join(DEADLINE)
    assert not hanging_receiver.threads[0].is_alive()
    dispatcher.send(NumberedEvent(2))
    wait_until(lambda: hanging_receiver.received == [1, 2], "a new thread delivers later events")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_of_the_dispatcher_is_replaced(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    dead_threads: list[threading.Thread] = []

    def die() -> ThreadConnections:
        dead_threads.append(threading.current_thread())
        raise OSError("no settings for this thread")

    call_for_each_event(lambda event: received.append(event.number))
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher_module, "ThreadConnections", die)
        dispatcher.send(NumberedEvent(1))
        wait_until(lambda: dead_threads, "the thread has begun")
        dead_threads[0].join(DEADLINE)
    dispatcher.send(NumberedEvent(2))
    wait_until(lambda: received == [1, 2])


def test_flushing_waits_for_waiting_events_only_until_the_timeout(
    dispatcher: EventDispatcher,
    call_for_each_event: ConnectSink,
) -> None:
    may_end = threading.Event()
    received: list[tuple[str, int]] = []

    def receive(event: NumberedEvent) -> None:
        if event.name == "slow":
            may_end.wait(DEADLINE)
        received.append((event.name, threading.get_ident()))

    call_for_each_event(receive)
    dispatcher.send(NumberedEvent(name="first"))
    dispatcher.flush(timeout=DEADLINE)
    assert [name for name, _ in received] == ["first"]
    dispatcher.send(NumberedEvent(name="slow"))
    dispatcher.flush(timeout=0.01)
    dispatcher.send(NumberedEvent(name="last"))
    assert len(received) == 1
    may_end.set()
    dispatcher.stop(timeout=DEADLINE)
    assert [name for name, _ in received] == ["first", "slow", "last"]
    assert len({thread for _, thread in received}) == 1, "one thread has sent all events"


def test_a_stopped_dispatcher_sends_events_again(dispatcher: EventDispatcher, call_for_each_event: ConnectSink) -> None:
    received: list[int] = []
    call_for_each_event(lambda event: received.append(event.number))
    for number in (1, 2, 3):
        dispatcher.send(NumberedEvent(number))
        dispatcher.stop(timeout=DEADLINE)
    assert received == [1, 2, 3]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_a_receiver_leaves_open_is_rolled_back_before_the_next_event(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink
) -> None:
    def receive(event: NumberedEvent) -> None:
        if event.number == 1:
            transaction.atomic().__enter__()  # never left
        Ledger.objects.create(entry=str(event.number))

    call_for_each_event(receive)
    for number in (1, 2):
        dispatcher.send(NumberedEvent(number))
    wait_until(lambda: dispatcher.backlog == 0)
    assert list(Ledger.objects.values_list("entry", flat=True)) == ["2"]
    connection.close()


def test_a_connection_that_cannot_be_tidied_does_not_end_the_sending_of_events(
    dispatcher: EventDispatcher, call_for_each_event: ConnectSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tidy(self: ThreadConnections) -> None:
        raise OSError("the driver is broken")

    monkeypatch.setattr(ThreadConnections, "tidy", tidy)
    received: list[int] = []
    call_for_each_event(lambda event: received.append(event.number))
    for number in range(3):
        dispatcher.send(NumberedEvent(number))
    dispatcher.stop(timeout=DEADLINE)
    assert received == [0, 1, 2]


@pytest.mark.django_db(transaction=True)
def test_a_hanging_receiver_is_logged_and_its_process_replaced(
    runworker: Callable[..., ManagePy],
) -> None:
    process = runworker(
        "--poll-interval",
        "3600",
        jobs="""
            import threading
            from django_skipqueue.signals import job_completed
            from django_skipqueue.worker import dispatcher

            dispatcher.HANGS_AFTER = 1.0

            def receive(attempt, **event):
                if attempt.job.task.endswith("see"):
                    threading.Event().wait()

            job_completed.connect(receive)
        """,
    )
    (first_worker,) = workers()
    worker_jobs.see.defer(1)
    process.wait_for("receiver hangs")
    assert "in receive" in process.log or "receive (" in process.log, process.log
    wait_until(lambda: Worker.objects.exclude(pk=first_worker.pk).exists())
    jobs.noop.defer()
    wait_for_statuses(completed=2)
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_many_short_calls_of_a_receiver_do_not_count_as_hanging(
    dispatcher: EventDispatcher, connect_receiver: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "HANGS_AFTER", 0.5)
    connect_receiver(job_failed, lambda **_: time.sleep(0.01))
    dispatcher.send(AttemptsFailed([make_attempt(number) for number in range(100)]))
    hangs_at = set()  # the times at which the dispatcher would count the receiver as hanging
    while dispatcher.backlog:
        hangs_at.add(dispatcher.hangs_at)
        time.sleep(0.005)
    hangs_at.discard(float("inf"))
    assert max(hangs_at) - min(hangs_at) > 0.5, "each call has the whole time before it counts as hanging"
    wait_until(lambda: dispatcher.hangs_at == float("inf"))

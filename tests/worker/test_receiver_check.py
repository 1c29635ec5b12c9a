"""`ReceiverCheck` logs each hanging signal receiver once."""

import threading
import time
from collections.abc import Iterator

import pytest

from django_skipqueue.events.events import WorkerStopped
from django_skipqueue.signals import worker_stopped
from django_skipqueue.worker import dispatcher as dispatcher_module
from django_skipqueue.worker.dispatcher import EventDispatcher, ReceiverCheck

from ..app.waiting import DEADLINE, wait_until


class BlockingReceiver:
    """A receiver that returns once for each `release` of `turns`."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)
        self.calls = 0

    def __call__(self, **_: object) -> None:
        self.calls += 1
        self.turns.acquire(timeout=DEADLINE)


@pytest.fixture
def blocking_receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingReceiver]:
    monkeypatch.setattr(dispatcher_module, "HANGS_AFTER", 0.05)
    receiver = BlockingReceiver()
    worker_stopped.connect(receiver, weak=False)
    yield receiver
    worker_stopped.disconnect(receiver)


@pytest.fixture
def dispatcher(blocking_receiver: BlockingReceiver) -> Iterator[EventDispatcher]:
    dispatcher = EventDispatcher()
    yield dispatcher
    blocking_receiver.turns.release(10)
    dispatcher.stop(timeout=DEADLINE)


def run_if_due(check: ReceiverCheck) -> bool:
    """Run the service as its loop does. Returns whether it was due."""
    if check.due_at > time.monotonic():
        return False
    check.run(time.monotonic())
    return True


def test_each_receiver_that_hangs_is_logged_once(
    dispatcher: EventDispatcher, blocking_receiver: BlockingReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    check = ReceiverCheck(dispatcher, who="supervisor a", hint="a hint")
    for number in (1, 2):
        dispatcher.send(WorkerStopped("w", "w:1", 0))
        wait_until(lambda: run_if_due(check), "the receiver counts as hanging")
        assert not run_if_due(check)
        assert caplog.text.count("receiver hangs") == number
        blocking_receiver.turns.release()
        wait_until(lambda: dispatcher.backlog == 0)
    assert check.due_at == float("inf")


def test_a_receiver_that_returns_just_in_time_is_not_logged(
    dispatcher: EventDispatcher, blocking_receiver: BlockingReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    replaced_workers: list[str] = []
    check = ReceiverCheck(dispatcher, who="worker a", hint="a hint", then=lambda: replaced_workers.append("a"))
    dispatcher.send(WorkerStopped("w", "w:1", 0))
    wait_until(lambda: check.due_at <= time.monotonic())
    blocking_receiver.turns.release()
    wait_until(lambda: dispatcher.hangs_at == float("inf"))
    check.run(time.monotonic())
    assert not replaced_workers
    assert "receiver hangs" not in caplog.text

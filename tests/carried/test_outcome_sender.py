"""`OutcomeSender`: no outcome is lost, whatever the broker does."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from django_skipqueue.contrib.celery.outcome_sender import OutcomeSender
from django_skipqueue.contrib.celery.rabbitmq import AmqpLink
from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt
from scripts.embedded_rabbitmq import RabbitMQ

from ..app.waiting import DEADLINE, wait_until
from .celery_worker import Relaying, a_job


@pytest.fixture
def sender(broker_url: str) -> Iterator[OutcomeSender]:
    made = OutcomeSender(Celery(broker=broker_url), who="w")
    yield made
    made.link.close()


def send_all(sender: OutcomeSender, count: int) -> list[threading.Thread]:
    """Send each outcome in a thread of its own, as Celery's pool of threads does."""
    attempts = [Attempt(a_job(number, "jobs.noop"), COMPLETED, 0.0, 1.0, "w") for number in range(count)]
    threads = [threading.Thread(target=sender.send, args=[attempt, "default"], daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    return threads


LONG = "x" * 100_000


def send_long(sender: OutcomeSender, url: str, **fields: Any) -> tuple[Attempt, Attempt]:
    """Send an outcome with a long result, and a short one. Returns both as they arrive."""
    relaying = Relaying(url)
    long = Outcome("completed", result=f'"{LONG}"', notes=f'{{"log": "{LONG}"}}')
    attempts = [
        Attempt(a_job(number, "jobs.echo", **fields), outcome, 0.0, 1.0, "w", is_written)
        for number, outcome, is_written in ((1, long, False), (2, COMPLETED, False), (3, long, True))
    ]
    threads = [threading.Thread(target=sender.send, args=[each, "default"], daemon=True) for each in attempts]
    for thread in threads:
        thread.start()
    arrived = relaying.outcomes(3)
    end(threads)
    relaying.carrier.close()
    assert arrived[2].outcome == COMPLETED
    return arrived[1], arrived[3]


def check_replaced(failed: Attempt, written: Attempt) -> None:
    error = str(failed.outcome.last_error)
    assert failed.outcome.status == "failed"
    assert error.startswith("MessageTooLarge: The job has run (completed), but the message of its outcome has 2")
    assert failed.outcome.error is not None
    assert "Return less" in failed.outcome.error["message"]
    assert (failed.outcome.error["attempt"], failed.outcome.error["duration_ms"]) == (1, 1000.0)
    assert (written.outcome, written.is_written) == (COMPLETED, True), "the task has written it"


def test_an_outcome_that_is_too_large_is_replaced_by_a_failure(
    sender: OutcomeSender, broker_url: str, settings: Any
) -> None:
    carrier = {"APP": "shop.celery.app", "QUEUES": {"carried": "pdf"}, "MAX_MESSAGE_SIZE": 65_536}
    settings.SKIPQUEUE = {"CARRIERS": {"celery": carrier}}
    check_replaced(*send_long(sender, broker_url, metadata=f'{{"of the user": "{LONG[:60_000]}"}}'))


def test_an_outcome_that_the_broker_refuses_is_replaced_by_a_failure(
    sender: OutcomeSender, broker_url: str, small_message_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No setting of this process gives the limit."""
    check_replaced(*send_long(sender, broker_url))
    assert caplog.text.count("outcomes wait") == 1
    assert f"larger than configured max size {small_message_limit}" in caplog.text


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_a_connection_that_has_broken_meanwhile_is_opened_again_without_a_word(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A process of Celery does not look at its connection between two outcomes."""
    relaying = Relaying(broker_url)
    for break_it in (lambda sock: sock.shutdown(socket.SHUT_RDWR), lambda sock: sock.close(), lambda _: None):
        end(send_all(sender, 1))
        assert set(relaying.outcomes(1)) == {0}
        break_it(sender.link.connection.sock)
    assert "outcomes wait" not in caplog.text
    relaying.carrier.close()


def test_a_broker_that_confirms_nothing_is_connected_to_again(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender sends the outcome again, and the relay drops the second one."""
    relaying = Relaying(broker_url)
    with monkeypatch.context() as patched:
        patched.setattr("django_skipqueue.contrib.celery.rabbitmq.LONGEST_CONFIRM_SECONDS", -1.0)
        patched.setattr(AmqpLink, "receive", lambda *_: None)
        threads = send_all(sender, 1)
        wait_until(lambda: "has not confirmed an outcome" in caplog.text, "it is logged")
    assert set(relaying.outcomes(1)) == {0}
    end(threads)
    relaying.carrier.close()


def test_an_outcome_waits_for_a_blocked_broker(
    sender: OutcomeSender,
    broker_url: str,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender waits as long as it takes: the broker has said that it lacks memory."""
    monkeypatch.setattr("django_skipqueue.contrib.celery.outcome_sender.LATE_CONFIRM_LOOK_SECONDS", 0.05)
    relaying = Relaying(broker_url)
    rabbitmq.control("set_vm_memory_high_watermark", "0")
    try:
        threads = send_all(sender, 3)
        wait_until(lambda: sender.link.is_blocked, "the broker says that it is blocked")
        monkeypatch.setattr("django_skipqueue.contrib.celery.rabbitmq.LONGEST_CONFIRM_SECONDS", 0.2)
        blocked_at = time.monotonic()
        wait_until(lambda: time.monotonic() > blocked_at + 0.5, "longer than it may take otherwise")
        assert all(thread.is_alive() for thread in threads)
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")
    assert set(relaying.outcomes(3)) == {0, 1, 2}
    end(threads)
    assert "outcomes wait" not in caplog.text
    relaying.carrier.close()


def test_threads_share_the_connection(sender: OutcomeSender, broker_url: str) -> None:
    relaying = Relaying(broker_url)
    for _ in range(2):
        threads = send_all(sender, 50)
        assert set(relaying.outcomes(50)) == set(range(50))
        end(threads)
    relaying.carrier.close()


def test_outcomes_wait_for_their_queue(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker returns the messages. The sender sends them again until the queue exists."""
    threads = send_all(sender, 5)
    wait_until(lambda: "outcomes wait" in caplog.text, "it is logged")
    assert all(thread.is_alive() for thread in threads)
    relaying = Relaying(broker_url)
    assert set(relaying.outcomes(5)) == set(range(5))
    end(threads)
    assert caplog.text.count("outcomes wait") == 1
    relaying.carrier.close()

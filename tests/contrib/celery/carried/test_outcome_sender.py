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

from ....app.waiting import DEADLINE, wait_until
from .celery_worker import RelayDouble, make_claimed_job


@pytest.fixture
def sender(broker_url: str) -> Iterator[OutcomeSender]:
    outcome_sender = OutcomeSender(Celery(broker=broker_url), who="w")
    yield outcome_sender
    outcome_sender.link.close()


def send_all(sender: OutcomeSender, count: int) -> list[threading.Thread]:
    """Send each outcome in a thread of its own, as Celery's pool of threads does."""
    attempts = [
        Attempt(make_claimed_job(number, "jobs.noop"), COMPLETED, started=0.0, ended=1.0, worker="w")
        for number in range(count)
    ]
    threads = [threading.Thread(target=sender.send, args=[attempt, "default"], daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    return threads


LONG = "x" * 100_000


def send_long_outcomes(sender: OutcomeSender, url: str, **fields: Any) -> tuple[Attempt, Attempt]:
    """Send a long, a short, and another long outcome, and return both long ones as they arrive.

    The task itself has already written the last outcome to the job's row.
    """
    relay = RelayDouble(url)
    long_outcome = Outcome("completed", result=f'"{LONG}"', notes=f'{{"log": "{LONG}"}}')
    attempts = [
        Attempt(
            make_claimed_job(number, "jobs.echo", **fields),
            outcome,
            started=0.0,
            ended=1.0,
            worker="w",
            is_written=is_written,
        )
        for number, outcome, is_written in ((1, long_outcome, False), (2, COMPLETED, False), (3, long_outcome, True))
    ]
    threads = [threading.Thread(target=sender.send, args=[attempt, "default"], daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    arrived = relay.outcomes(3)
    join_all(threads)
    relay.carrier.close()
    assert arrived[2].outcome == COMPLETED
    return arrived[1], arrived[3]


def check_outcomes_replaced(failed_attempt: Attempt, written_attempt: Attempt) -> None:
    """Check that the sender has replaced both outcomes, which were too long. A task itself has written the second."""
    error = str(failed_attempt.outcome.last_error)
    assert failed_attempt.outcome.status == "failed"
    assert error.startswith("MessageTooLarge: The job has run (completed), but its outcome needs a message of 2")
    assert failed_attempt.outcome.error is not None
    assert "Return less" in failed_attempt.outcome.error["message"]
    assert (failed_attempt.outcome.error["attempt"], failed_attempt.outcome.error["duration_ms"]) == (1, 1000.0)
    assert (written_attempt.outcome, written_attempt.is_written) == (COMPLETED, True), (
        "the task itself has written this outcome"
    )


def test_an_outcome_that_is_too_large_is_replaced_by_a_failure(
    sender: OutcomeSender, broker_url: str, settings: Any
) -> None:
    carrier = {"APP": "shop.celery.app", "QUEUES": {"carried": "pdf"}, "MAX_MESSAGE_SIZE": 65_536}
    settings.SKIPQUEUE = {"CARRIERS": {"celery": carrier}}
    check_outcomes_replaced(*send_long_outcomes(sender, broker_url, metadata=f'{{"of the user": "{LONG[:60_000]}"}}'))


def test_an_outcome_that_the_broker_refuses_is_replaced_by_a_failure(
    sender: OutcomeSender, broker_url: str, small_message_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the broker knows the limit. No setting of this process contains it."""
    check_outcomes_replaced(*send_long_outcomes(sender, broker_url))
    assert caplog.text.count("outcomes wait") == 1
    assert f"larger than configured max size {small_message_limit}" in caplog.text


def join_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_a_broken_connection_is_opened_again_without_a_log_line(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two outcomes, a process of Celery does not notice that its connection broke."""
    relay = RelayDouble(broker_url)
    for break_connection in (lambda sock: sock.shutdown(socket.SHUT_RDWR), lambda sock: sock.close(), lambda _: None):
        join_all(send_all(sender, 1))
        assert set(relay.outcomes(1)) == {0}
        break_connection(sender.link.connection.sock)
    assert "outcomes wait" not in caplog.text
    relay.carrier.close()


def test_an_outcome_that_the_broker_does_not_confirm_is_sent_again(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender sends the outcome again, and the relay drops the second outcome."""
    relay = RelayDouble(broker_url)
    with monkeypatch.context() as patched:
        patched.setattr("django_skipqueue.contrib.celery.rabbitmq.LONGEST_CONFIRM_SECONDS", -1.0)
        patched.setattr(AmqpLink, "receive", lambda *_: None)
        threads = send_all(sender, 1)
        wait_until(lambda: "has not confirmed an outcome" in caplog.text, "the sender has logged the problem")
    assert set(relay.outcomes(1)) == {0}
    join_all(threads)
    relay.carrier.close()


def test_an_outcome_waits_for_a_blocked_broker(
    sender: OutcomeSender,
    broker_url: str,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender waits without a time limit, because the broker has said that it lacks memory."""
    monkeypatch.setattr("django_skipqueue.contrib.celery.outcome_sender.LATE_CONFIRM_CHECK_SECONDS", 0.05)
    relay = RelayDouble(broker_url)
    rabbitmq.control("set_vm_memory_high_watermark", "0")  # the broker now lacks memory, so it stops reading
    try:
        threads = send_all(sender, 3)
        wait_until(lambda: sender.link.is_blocked, "the broker says that it is blocked")
        monkeypatch.setattr("django_skipqueue.contrib.celery.rabbitmq.LONGEST_CONFIRM_SECONDS", 0.2)
        blocked_at = time.monotonic()
        wait_until(lambda: time.monotonic() > blocked_at + 0.5, "the longest time for a confirmation is over")
        assert all(thread.is_alive() for thread in threads)
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")  # the default
    assert set(relay.outcomes(3)) == {0, 1, 2}
    join_all(threads)
    assert "outcomes wait" not in caplog.text
    relay.carrier.close()


def test_many_threads_share_one_connection_of_the_sender(sender: OutcomeSender, broker_url: str) -> None:
    relay = RelayDouble(broker_url)
    for _ in range(2):
        threads = send_all(sender, 50)
        assert set(relay.outcomes(50)) == set(range(50))
        join_all(threads)
    relay.carrier.close()


def test_outcomes_wait_until_their_queue_exists(
    sender: OutcomeSender, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker returns the messages. The sender sends them again until the queue exists."""
    threads = send_all(sender, 5)
    wait_until(lambda: "outcomes wait" in caplog.text, "the sender has logged the problem")
    assert all(thread.is_alive() for thread in threads)
    relay = RelayDouble(broker_url)
    assert set(relay.outcomes(5)) == set(range(5))
    join_all(threads)
    assert caplog.text.count("outcomes wait") == 1
    relay.carrier.close()

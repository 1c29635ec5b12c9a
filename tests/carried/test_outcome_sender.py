"""`OutcomeSender`: no outcome is lost, whatever the broker does."""

import threading
import time
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from celery import Celery

from django_skipqueue.carried.outcome_link import OutcomeLink, Outgoing
from django_skipqueue.carried.outcome_sender import OutcomeSender
from django_skipqueue.relay import wire
from django_skipqueue.relay.rabbitmq import topology
from django_skipqueue.values.outcomes import COMPLETED, Outcome
from django_skipqueue.values.records import Attempt

from ..app.waiting import DEADLINE, wait_until
from ..relay.consumer import Consumer
from .celery_worker import Relaying, a_job


def send_all(sender: OutcomeSender, count: int) -> list[threading.Thread]:
    """Each outcome in a thread of its own, as in Celery's pool of threads."""
    attempts = [Attempt(a_job(number, "jobs.noop"), COMPLETED, 0.0, 1.0, "w") for number in range(count)]
    threads = [threading.Thread(target=sender.send, args=[attempt, "default"], daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    return threads


LONG = "x" * 100_000


def send_long(url: str, **fields: Any) -> tuple[Attempt, Attempt]:
    """Send an outcome with a long result, and a short one. Returns both as they arrive."""
    relaying = Relaying(url)
    sender = OutcomeSender(Celery(broker=url), who="w")
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


def test_an_outcome_that_is_too_large_is_replaced_by_a_failure(broker_url: str, settings: Any) -> None:
    carrier = {"APP": "shop.celery.app", "QUEUES": {"carried": "pdf"}, "MAX_MESSAGE_SIZE": 65_536}
    settings.SKIPQUEUE = {"CARRIERS": {"celery": carrier}}
    check_replaced(*send_long(broker_url, metadata=f'{{"of the user": "{LONG[:60_000]}"}}'))


def test_an_outcome_that_the_broker_refuses_is_replaced_by_a_failure(
    broker_url: str, takes_little: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No setting of this process says so before."""
    check_replaced(*send_long(broker_url))
    assert caplog.text.count("outcomes wait") == 1
    assert f"larger than configured max size {takes_little}" in caplog.text


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_outcomes_in_quick_succession_share_a_message(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes at once, and the others after it, each home's together, up to the size of a small message."""
    relaying = Relaying(broker_url)
    link = OutcomeLink(Celery(broker=broker_url), who="w", enough=1_000)
    confirmed: list[int] = []
    for number in range(100):
        attempt = Attempt(a_job(number, "jobs.noop"), COMPLETED, 0.0, 1.0, "w")
        link.put(Outgoing(wire.encode_outcome(attempt, "default"), partial(confirmed.append, number)))
        if not number:
            link.turn()
            monkeypatch.setattr("django_skipqueue.carried.outcome_link.GATHER_SECONDS", 3600)
    assert link._publish_at > time.monotonic() + 1_000
    monkeypatch.undo()
    while len(confirmed) < 100:
        link.turn()
    assert sorted(confirmed) == list(range(100))
    with closing(Consumer(broker_url)) as consumer:
        relaying.carrier.close()
        assert 3 <= wait_until(lambda: consumer.count(topology.outcome_queue("default")), "they are there") <= 10
    link.close()


def test_enough_outcomes_wait_for_no_more(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.carried.outcome_link.GATHER_SECONDS", 3600)
    relaying = Relaying(broker_url)
    sender = OutcomeSender(Celery(broker=broker_url), who="w", enough=3)
    end(send_all(sender, 1))
    threads = send_all(sender, 3)
    assert set(relaying.outcomes(3)) == {0, 1, 2}
    end(threads)
    relaying.carrier.close()


def test_threads_share_the_connection(broker_url: str) -> None:
    relaying = Relaying(broker_url)
    sender = OutcomeSender(Celery(broker=broker_url), who="w")
    for _ in range(2):
        threads = send_all(sender, 50)
        assert set(relaying.outcomes(50)) == set(range(50))
        end(threads)
    relaying.carrier.close()


def test_outcomes_wait_for_their_queue(broker_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker returns them, and confirms that; they are sent again until the queue is there."""
    sender = OutcomeSender(Celery(broker=broker_url), who="w")
    threads = send_all(sender, 5)
    wait_until(lambda: "outcomes wait" in caplog.text, "it is logged")
    assert all(thread.is_alive() for thread in threads)
    relaying = Relaying(broker_url)
    assert set(relaying.outcomes(5)) == set(range(5))
    end(threads)
    assert caplog.text.count("outcomes wait") == 1
    relaying.carrier.close()

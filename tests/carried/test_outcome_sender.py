"""`OutcomeSender`: no outcome is lost, whatever the broker does."""

import threading

import pytest
from celery import Celery

from django_skipqueue.carried.outcome_sender import OutcomeSender
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt

from ..app.waiting import DEADLINE, wait_until
from .celery_worker import Relaying, a_job


def send_all(sender: OutcomeSender, count: int) -> list[threading.Thread]:
    """Each outcome in a thread of its own, as in Celery's pool of threads."""
    attempts = [Attempt(a_job(number, "jobs.noop"), COMPLETED, 0.0, 1.0, "w") for number in range(count)]
    threads = [threading.Thread(target=sender.send, args=[attempt, "default"], daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    return threads


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


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

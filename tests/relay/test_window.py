"""The window: how many jobs a relay may claim, and how often it counts."""

import time
from typing import Any

import pytest

from django_skipqueue.relay import window
from django_skipqueue.relay.carried_jobs import CarriedJobs
from django_skipqueue.relay.carrier import Taken
from django_skipqueue.relay.window import Window
from django_skipqueue.values.records import ClaimedJob


def job(number: int, size: int) -> ClaimedJob:
    return ClaimedJob(number, 1, "t", "q", "x" * (size - 2), "{}", 1, 3, 0, 0.0, 0.0, "{}")


def counted(size: int = 10_000) -> Window:
    store: Any = Store0()
    made = Window(store, CarriedJobs(), carrier_id="celery", size=size)
    made.run(0.0)
    return made


class Store0:
    """The carrier holds nothing."""

    def rows(self, *_: object) -> list[tuple[int]]:
        return [(0,)]


def test_what_is_on_its_way_to_the_carrier_is_bounded_by_its_size() -> None:
    """A relay holds the messages in memory until the carrier has taken them."""
    made = counted()
    assert made.room(0, 0.0) == window.BATCH
    large = [job(number, 1_000_000) for number in range(20)]
    for number in range(4):
        part = large[4 * number : 4 * number + 4]
        made.claimed(part)
        made.jobs.published(part)
        assert made.room(0, 0.0) == 12 - 4 * number
    assert made.jobs.unconfirmed_size == window.MOST_UNCONFIRMED_SIZE
    made.jobs.take(Taken(confirmed=[(0, 1), (1, 1)], refused=[(2, 1)]), lambda _: None)
    assert made.room(0, 0.0) == 3
    assert made.room(2, 0.0) == 1, "two more are claimed and not published"
    made.jobs.not_sent([(3, 1)])
    assert made.room(0, 0.0) == 4
    made.jobs.connection_lost()
    assert made.jobs.unconfirmed_size == 0
    made.claimed([job(1, 10), job(2, 10)])
    assert made.room(0, 0.0) == window.BATCH


def test_a_job_that_is_larger_than_the_bound_is_claimed_all_the_same() -> None:
    made = counted()
    made.claimed([job(1, 2 * window.MOST_UNCONFIRMED_SIZE)])
    assert made.room(0, 0.0) == 1
    made.jobs.published([job(1, 2 * window.MOST_UNCONFIRMED_SIZE)])
    assert made.room(0, 0.0) == 0


class SlowStore:
    """Takes a while to count, as with 100,000 rows."""

    def rows(self, *_: object) -> list[tuple[int]]:
        time.sleep(0.05)
        return [(100,)]


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_slow_count_is_not_repeated_all_the_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "COUNT_INTERVAL", 0.1)
    store: Any = SlowStore()
    slow, began = Window(store, CarriedJobs(), carrier_id="celery", size=size), time.monotonic()
    slow.run(0.0)
    assert slow.due_at - began >= 0.05 * window.COUNT_SHARE

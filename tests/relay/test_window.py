"""The window: how many jobs a relay may claim, and how often it counts."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from django_skipqueue.contrib.celery import window
from django_skipqueue.contrib.celery.carrier import ReturnedOutcome, Taken
from django_skipqueue.contrib.celery.window import CarriedJobs, CarrierWindow
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob


def job(number: int, size: int) -> ClaimedJob:
    return ClaimedJob(number, 1, "t", "q", "x" * (size - 2), "{}", 1, 3, 0, 0.0, 0.0, "{}")


def counted(size: int = 10_000, *, held: tuple[int, int] = (0, 0), relays: int = 1) -> CarrierWindow:
    """Return the window after two counts that have found these jobs with the carrier and with its relays."""
    made = new(size, held, relays)
    for _ in range(2):
        made.run(0.0)
    return made


def new(size: int, held: tuple[int, int] = (0, 0), relays: int = 1) -> CarrierWindow:
    store: Any = SimpleNamespace(holder={}, rows=lambda *_: [(*held, relays)])
    return CarrierWindow(store, CarriedJobs(), size=size, worker_timeout=60.0)


@pytest.mark.parametrize(("size", "room"), [(100, 12), (1, 1), (100_000, window.CARRIER_BATCH)])
def test_until_its_second_count_a_relay_takes_little(size: int, room: int) -> None:
    """Other relays may start at the same time, and have no row yet."""
    made = new(size)
    assert made.room(0, 0.0) == 0
    made.run(0.0)
    assert made.room(0, 0.0) == room
    made.run(0.0)
    assert made.room(0, 0.0) == min(size, window.CARRIER_BATCH)


@pytest.mark.parametrize(
    ("held", "relays", "room"),
    [
        ((0, 0), 1, 100),
        ((40, 0), 1, 60),
        ((0, 0), 4, 25),
        ((20, 20), 4, 15),
        ((97, 0), 4, 1),
        ((90, 20), 2, 0),
        ((0, 0), 0, 100),
    ],
)
def test_a_relay_takes_its_share_of_the_room(held: tuple[int, int], relays: int, room: int) -> None:
    assert counted(100, held=held, relays=relays).room(0, 0.0) == room


def test_a_relay_takes_at_most_its_share_until_the_next_count() -> None:
    made = counted(100, held=(60, 0), relays=4)
    mine = [job(number, 10) for number in range(10)]
    assert made.room(4, 0.0) == 6, "some are on their way from the database"
    made.jobs.published(mine)
    assert made.room(0, 0.0) == 0
    made.jobs.take(Taken(confirmed=[each.ref for each in mine[:8]], refused=[each.ref for each in mine[8:]]), _none)
    assert made.room(0, 0.0) == 2, "the carrier has refused two"
    made.jobs.handed_over([each.ref for each in mine[:8]], 8)
    assert made.room(0, 0.0) == 2
    ended = [Attempt(each, COMPLETED, 0.0, 0.1, "w") for each in mine[:3]]
    made.jobs.take(Taken(outcomes=[ReturnedOutcome(1, attempt) for attempt in ended]), _none)
    made.jobs.settled(ended)
    assert made.room(0, 0.0) == 5


def _none(_: object) -> None:
    """Return no attempt for a job that came back."""


def test_what_is_on_its_way_to_the_carrier_is_bounded_by_its_size() -> None:
    """A relay holds the messages in memory until the carrier has taken them."""
    made = counted()
    assert made.room(0, 0.0) == window.CARRIER_BATCH
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
    assert made.room(0, 0.0) == window.CARRIER_BATCH


def test_a_job_that_is_larger_than_the_bound_is_claimed() -> None:
    made = counted()
    made.claimed([job(1, 2 * window.MOST_UNCONFIRMED_SIZE)])
    assert made.room(0, 0.0) == 1
    made.jobs.published([job(1, 2 * window.MOST_UNCONFIRMED_SIZE)])
    assert made.room(0, 0.0) == 0


class SlowStore:
    """Takes a while to count, as with 100,000 rows."""

    holder: dict[str, str] = {}

    def rows(self, *_: object) -> list[tuple[int, int, int]]:
        time.sleep(0.05)
        return [(100, 0, 1)]


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_slow_count_is_not_repeated_all_the_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_COUNT_INTERVAL", 0.1)
    store: Any = SlowStore()
    slow, began = CarrierWindow(store, CarriedJobs(), size=size, worker_timeout=60.0), time.monotonic()
    slow.run(0.0)
    assert slow.due_at - began >= 0.05 * window.COUNT_SHARE

"""The window: how many jobs a relay may claim, and how often it counts the carrier's jobs."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from django_skipqueue.contrib.celery import window
from django_skipqueue.contrib.celery.carrier import ReturnedOutcome, Taken
from django_skipqueue.contrib.celery.window import CarriedJobs, CarrierWindow
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob

from .test_wire import JOB


def job_of_size(job_id: int, *, size: int) -> ClaimedJob:
    return JOB._replace(id=job_id, lease=1, args="x" * (size - len(JOB.kwargs)))


def window_after_two_counts(size: int = 10_000, *, held: tuple[int, int] = (0, 0), relays: int = 1) -> CarrierWindow:
    """Return the window after two counts, which found that the carrier and its relays hold these numbers of jobs."""
    relay_window = new_window(size, held, relays)
    for _ in range(2):
        relay_window.run(0.0)
    return relay_window


def new_window(size: int, held: tuple[int, int] = (0, 0), relays: int = 1) -> CarrierWindow:
    store: Any = SimpleNamespace(holder={}, rows=lambda *_: [(*held, relays)])
    return CarrierWindow(store, CarriedJobs(), size=size, worker_timeout=60.0)


def room_of(relay_window: CarrierWindow, *, coming: int = 0) -> int:
    """Return how many jobs the relay may claim. `coming`: the number of claimed jobs that are not yet published."""
    return relay_window.room(coming, now=0.0)


@pytest.mark.parametrize(("size", "room"), [(100, 12), (1, 1), (100_000, window.CARRIER_BATCH)])
def test_before_its_second_count_a_relay_claims_an_eighth_of_the_window(size: int, room: int) -> None:
    """Other relays may start at the same time, and may have no row yet."""
    relay_window = new_window(size)
    assert room_of(relay_window) == 0, "before the first count, the relay claims no job"
    relay_window.run(0.0)
    assert room_of(relay_window) == room
    relay_window.run(0.0)
    assert room_of(relay_window) == min(size, window.CARRIER_BATCH)


@pytest.mark.parametrize(
    # held: jobs that the carrier has, and jobs that relays have; room: jobs that the relay may claim
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
def test_a_relay_claims_its_share_of_the_free_window(held: tuple[int, int], relays: int, room: int) -> None:
    assert room_of(window_after_two_counts(100, held=held, relays=relays)) == room


def test_a_relay_claims_at_most_its_share_until_the_next_count() -> None:
    relay_window = window_after_two_counts(100, held=(60, 0), relays=4)
    jobs_of_relay = [job_of_size(number, size=10) for number in range(10)]
    assert room_of(relay_window, coming=4) == 6, "four jobs of its share of ten are on their way from the database"
    relay_window.jobs.published(jobs_of_relay)
    assert room_of(relay_window) == 0
    relay_window.jobs.take(
        Taken(confirmed=[job.ref for job in jobs_of_relay[:8]], refused=[job.ref for job in jobs_of_relay[8:]]),
        make_no_attempt,
    )
    assert room_of(relay_window) == 2, "the carrier has refused two jobs"
    relay_window.jobs.handed_over([job.ref for job in jobs_of_relay[:8]], count=8)
    assert room_of(relay_window) == 2
    finished_attempts = [Attempt(job, COMPLETED, started=0.0, ended=0.1, worker="w") for job in jobs_of_relay[:3]]
    relay_window.jobs.take(
        Taken(outcomes=[ReturnedOutcome(1, attempt) for attempt in finished_attempts]), make_no_attempt
    )
    relay_window.jobs.settled(finished_attempts)
    assert room_of(relay_window) == 5


def make_no_attempt(_: object) -> None:
    """Stand in for the function that makes a failed attempt of a returned job. In these tests, no job is returned."""


def test_the_size_of_unconfirmed_jobs_is_bounded() -> None:
    """A relay keeps the messages in memory until the carrier has confirmed them."""
    relay_window = window_after_two_counts()
    assert room_of(relay_window) == window.CARRIER_BATCH
    large = [job_of_size(number, size=1_000_000) for number in range(20)]
    for number in range(4):
        batch = large[4 * number : 4 * number + 4]
        relay_window.claimed(batch)
        relay_window.jobs.published(batch)
        assert room_of(relay_window) == 12 - 4 * number  # in all, 16 of these jobs may be unconfirmed
    assert relay_window.jobs.unconfirmed_size == window.MOST_UNCONFIRMED_SIZE
    relay_window.jobs.take(Taken(confirmed=[(0, 1), (1, 1)], refused=[(2, 1)]), make_no_attempt)
    assert room_of(relay_window) == 3
    assert room_of(relay_window, coming=2) == 1, "two more jobs are claimed and not published"
    relay_window.jobs.not_sent([(3, 1)])
    assert room_of(relay_window) == 4
    relay_window.jobs.connection_lost()
    assert relay_window.jobs.unconfirmed_size == 0
    relay_window.claimed([job_of_size(1, size=10), job_of_size(2, size=10)])
    assert room_of(relay_window) == window.CARRIER_BATCH


def test_a_job_that_is_larger_than_the_bound_is_claimed_alone() -> None:
    relay_window = window_after_two_counts()
    relay_window.claimed([job_of_size(1, size=2 * window.MOST_UNCONFIRMED_SIZE)])
    assert room_of(relay_window) == 1
    relay_window.jobs.published([job_of_size(1, size=2 * window.MOST_UNCONFIRMED_SIZE)])
    assert room_of(relay_window) == 0


class SlowStore:
    """A store that needs 0.05 s for a count, as if the table had 100,000 rows."""

    holder: dict[str, str] = {}

    def rows(self, *_: object) -> list[tuple[int, int, int]]:
        time.sleep(0.05)
        return [(100, 0, 1)]  # jobs at the carrier, jobs at its relays, relays


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_slow_count_is_repeated_less_often(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOW_COUNT_INTERVAL", 0.1)
    store: Any = SlowStore()
    relay_window, started_at = CarrierWindow(store, CarriedJobs(), size=size, worker_timeout=60.0), time.monotonic()
    relay_window.run(0.0)
    assert relay_window.due_at - started_at >= 0.05 * window.COUNT_SHARE

"""The failed attempts by their cause, read from the roll-ups."""

from datetime import timedelta

import pytest

from django_skipqueue.parts.history.failures import failing_causes, failures_of

from ..app.failing import BAD_VALUE, UNAVAILABLE
from ..app.rows import DEFAULT
from .failing import roll_up

HOUR, DAY = 3600.0, 86_400.0

pytestmark = pytest.mark.django_db


def test_attempts_are_counted_within_an_hour_a_day_and_a_week() -> None:
    for number, seconds_ago in ((1, 8 * DAY), (10, 3 * DAY), (100, 3 * HOUR), (1_000, 20 * 60), (10_000, 0)):
        roll_up(UNAVAILABLE, number, seconds_ago=seconds_ago)
    (found,) = failing_causes(DEFAULT, limit=10)
    assert found.cause == UNAVAILABLE
    assert (found.in_hour, found.in_day, found.in_week) == (11_000, 11_100, 11_110)
    assert sum(found.by_hour.values()) == 11_110
    assert found.by_hour[int(found.now.timestamp() // 3600)] >= 10_000
    assert timedelta(days=8) <= found.now - found.first_at < timedelta(days=8, minutes=1)
    assert found.now - found.last_at < timedelta(minutes=1)
    assert (found.last_line, found.last_job_id) == (42, 7)
    assert failures_of(DEFAULT, UNAVAILABLE)._replace(now=found.now) == found  # type: ignore[union-attr]


def test_those_that_failed_most_in_the_last_hour_come_first() -> None:
    roll_up(UNAVAILABLE, 500, seconds_ago=4 * HOUR)
    roll_up(BAD_VALUE, 2)
    other = BAD_VALUE._replace(place="shop.jobs.other")
    roll_up(other, 400, seconds_ago=4 * HOUR)
    assert [each.cause for each in failing_causes(DEFAULT, limit=10)] == [BAD_VALUE, UNAVAILABLE, other]
    assert [each.cause for each in failing_causes(DEFAULT, limit=1)] == [BAD_VALUE]


def test_a_cause_that_was_last_seen_more_than_a_week_ago_is_left_out() -> None:
    roll_up(UNAVAILABLE, seconds_ago=7.1 * DAY)
    assert failing_causes(DEFAULT, limit=10) == []
    found = failures_of(DEFAULT, UNAVAILABLE)
    assert found is not None
    assert (found.in_hour, found.in_day, found.in_week, found.by_hour) == (0, 0, 0, {})
    assert failures_of(DEFAULT, BAD_VALUE) is None

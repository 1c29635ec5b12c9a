"""When schedules fire: properties over five time zones and ten years, and every kind of expression."""

import builtins
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.parts.schedules.timetable import Cron, Every, parsed, timetable, upcoming, wall_clock_instant

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata")
"""Zones of both hemispheres. One changes its clock by half an hour, one changes it at midnight, and one never does."""

FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)

zones = st.sampled_from(ZONES)
moments = st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)).map(lambda time: time.replace(tzinfo=UTC))
fields_of_minutes = st.one_of(st.integers(0, 59).map(str), st.sampled_from(["*", "*/15", "0,30", "10-20", "59", "*/7"]))
fields_of_hours = st.one_of(st.integers(0, 23).map(str), st.sampled_from(["*", "*/2", "0-4", "1,2,3", "0,23"]))
expressions = st.builds(
    "{} {} {} {} {}".format,
    fields_of_minutes,
    fields_of_hours,
    st.sampled_from(["*", "*", "1", "L", "1-7", "*/2"]),
    st.sampled_from(["*", "*", "3,10", "mar-oct"]),
    st.sampled_from(["*", "*", "sun", "mon-fri", "sun#2"]),
)


def instant_at(text: str, zone: str) -> datetime:
    """Return the first instant at which a clock in this zone shows this time."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def times_between(table: Cron | Every, start: datetime, end: datetime) -> list[datetime]:
    """Return all times after the start and before the end."""
    times = []
    moment = table.after(start, planned=start)
    while moment is not None and moment < end:
        times.append(moment)
        moment = table.after(moment, planned=start)
    return times


# Each time of day fires once a day, also when the clock is set forward or back


TIMES_OF_DAY = ["0 0", "30 0", "0 1", "30 1", "45 1", "0 2", "15 2", "30 2", "59 2", "0 3", "0 9"]
"""Minutes and hours, most of them in the nights in which a clock is changed."""


@pytest.mark.slow  # every day of ten years in several zones
def test_each_time_of_a_day_fires_once_on_every_day_of_ten_years(subtests: pytest.Subtests) -> None:
    for zone, time_of_day in product(ZONES, TIMES_OF_DAY):
        with subtests.test(zone=zone, clock=time_of_day):
            times = times_between(Cron(f"{time_of_day} * * *", zone), FIRST, LAST)
            minute, hour = map(int, time_of_day.split())
            fires_by_day: Counter[date] = Counter()
            for moment in times:
                local_time = moment.astimezone(ZoneInfo(zone))
                fires_by_day[local_time.date()] += 1
                if local_time.time() != time(hour, minute):  # the clock skips it on this day
                    assert local_time.fold == 0
                    skipped = datetime.combine(local_time.date(), time(hour, minute))
                    assert local_time.replace(tzinfo=None) > skipped
                    just_before = (moment - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
                    assert just_before < skipped, "the first moment that the clock shows after the one that it skips"
                else:
                    assert local_time.fold == 0, "of two equal times on the clock, the first fires"
            first_day, last_day = min(fires_by_day), max(fires_by_day)
            assert set(fires_by_day.values()) == {1}
            assert len(fires_by_day) == (last_day - first_day).days + 1, "no day is left out"
            assert len(fires_by_day) in (3652, 3653, 3654), "the days of ten years"


@settings(max_examples=150, deadline=None)
@given(expressions, zones, moments)
def test_the_next_time_of_an_expression_is_later_than_the_moment(expression: str, zone: str, moment: datetime) -> None:
    table = timetable(cron=expression, interval=None, zone=zone)
    next_time = table.after(moment, planned=moment)
    assert next_time is not None
    assert next_time > moment
    assert next_time.utcoffset() == timedelta(0)
    assert table.newest(next_time, planned=moment, limit=1) == [next_time], "and it is the last one then"


@settings(max_examples=100, deadline=None)
@given(expressions, zones, moments, st.integers(1, 30))
def test_the_missed_times_are_the_times_that_would_have_fired(
    expression: str, zone: str, moment: datetime, number: int
) -> None:
    table = timetable(cron=expression, interval=None, zone=zone)
    start = table.after(moment, planned=moment)
    assert start is not None
    times = upcoming(table, start, number)
    assert all(earlier < later for earlier, later in pairwise(times))
    last_time = times[-1]
    assert table.newest(last_time, planned=start, limit=1_000) == times
    assert table.newest(last_time, planned=start, limit=3) == times[-3:]
    assert table.newest(last_time + timedelta(milliseconds=1), planned=start, limit=1_000) == times


@settings(max_examples=100, deadline=None)
@given(expressions, zones, moments, st.floats(0, 4 * 3600))
def test_the_next_time_does_not_depend_on_the_moment_at_which_it_is_computed(
    expression: str, zone: str, moment: datetime, seconds: float
) -> None:
    table = timetable(cron=expression, interval=None, zone=zone)
    next_time = table.after(moment, planned=moment)
    assert next_time is not None
    moment_between = min(moment + timedelta(seconds=seconds), next_time - timedelta(microseconds=1))
    assert table.after(moment_between, planned=moment) == next_time


HOURLY = {"*/10 * * * *": 10, "15,45 * * * *": 30, "*/20 * * * *": 20, "0 * * * *": 60, "15 * * * *": 60}
"""Expressions of every hour, and the minutes between two of their times."""

HALF_HOUR_ZONE = "Australia/Lord_Howe"
"""The zone whose clock is set forward and back by half an hour, not by an hour."""


def days_of_changes(zone: str, year: int) -> list[datetime]:
    """Return the days in UTC on which the clock of a zone changes; for a clock that never changes, any day."""
    days = [datetime(year, 1, 1, 12, tzinfo=UTC) + timedelta(days=number) for number in range(366)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in days]
    days_and_offsets = zip(days, pairwise(offsets), strict=False)
    return [day for day, (offset, next_offset) in days_and_offsets if offset != next_offset] or days[:1]


ZONES_AND_HOURLY_EXPRESSIONS = [
    (zone, expression, minutes)
    for zone in ZONES
    for expression, minutes in HOURLY.items()
    if zone != HALF_HOUR_ZONE or (minutes <= 30 and 30 % minutes == 0)
]


def test_expressions_of_every_hour_fire_at_equal_distances(subtests: pytest.Subtests) -> None:
    for zone, expression, minutes in ZONES_AND_HOURLY_EXPRESSIONS:
        with subtests.test(zone=zone, expression=expression, minutes=minutes):
            table = Cron(expression, zone)
            for day in days_of_changes(zone, 2026):
                times = times_between(table, day - timedelta(hours=12), day + timedelta(hours=36))
                assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(minutes=minutes)}
                assert table.newest(times[-1], planned=times[0], limit=len(times)) == times


@pytest.mark.parametrize("minute", [0, 15, 45])
def test_in_a_zone_with_half_hour_changes_an_hourly_expression_follows_the_wall_clock(minute: int) -> None:
    table, zone = Cron(f"{minute} * * * *", HALF_HOUR_ZONE), ZoneInfo(HALF_HOUR_ZONE)
    for day in days_of_changes(HALF_HOUR_ZONE, 2026):
        times = times_between(table, day - timedelta(hours=12), day + timedelta(hours=36))
        hours = Counter(moment.astimezone(zone).replace(tzinfo=None, minute=0) for moment in times)
        assert set(hours.values()) == {1}, "each hour has one, whatever is done to the clock"
        assert all(later - earlier == timedelta(hours=1) for earlier, later in pairwise(hours)), "no hour is left out"
        assert {moment.astimezone(zone).minute for moment in times} <= {minute, 30}, "30 where the clock skips it"
        assert table.newest(times[-1], planned=times[0], limit=len(times)) == times


def test_an_hourly_expression_fires_every_hour_when_the_clock_is_set_back() -> None:
    start = instant_at("2026-10-24T12:00", "Europe/Berlin")
    times = times_between(Cron("0 * * * *", "Europe/Berlin"), start, start + timedelta(days=1))
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(hours=1)}


def test_a_time_in_the_hour_that_is_skipped_fires_after_the_skip(subtests: pytest.Subtests) -> None:
    for expression in ("*/15 2 * * *", "30 */2 * * *", "0 30 2 * * *", "15,45 2 * * *"):
        with subtests.test(expression=expression):
            start, end = (
                instant_at("2026-03-29T01:59", "Europe/Berlin"),
                instant_at("2026-03-29T03:59", "Europe/Berlin"),
            )
            assert times_between(Cron(expression, "Europe/Berlin"), start, end) == [
                instant_at("2026-03-29T03:00", "Europe/Berlin")
            ]


def test_a_time_in_the_hour_that_is_repeated_fires_once(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = [("*/15 2 * * *", 4), ("30 */2 * * *", 1), ("0 30 2 * * *", 1)]
    for expression, expected_number in cases:
        with subtests.test(expression=expression, number=expected_number):
            start, end = (
                instant_at("2026-10-25T01:59", "Europe/Berlin"),
                instant_at("2026-10-25T03:59", "Europe/Berlin"),
            )
            assert len(times_between(Cron(expression, "Europe/Berlin"), start, end)) == expected_number
            in_second_hour = instant_at("2026-10-25T02:00", "Europe/Berlin") + timedelta(hours=1, minutes=1)
            assert times_between(Cron(expression, "Europe/Berlin"), in_second_hour, end) == []


def test_a_skipped_time_that_moves_onto_another_time_fires_once() -> None:
    start, end = instant_at("2026-03-29T01:59", "Europe/Berlin"), instant_at("2026-03-29T04:00", "Europe/Berlin")
    assert len(times_between(Cron("0 2,3 * * *", "Europe/Berlin"), start, end)) == 1


def test_a_skipped_time_on_the_wall_clock_becomes_the_first_instant_after_the_skip() -> None:
    zone = ZoneInfo("Europe/Berlin")
    for minute in range(60):
        skipped = datetime(2026, 3, 29, 2, minute, 13)  # noqa: DTZ001 (it is what a clock shows)
        assert wall_clock_instant(skipped, zone) == datetime(2026, 3, 29, 1, tzinfo=UTC)


# Cron expressions


def test_cron_expressions_have_the_expected_next_time(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("0 9 * * mon-fri", "2026-01-05T09:00"),
        ("0 9 * * MON", "2026-01-05T09:00"),
        ("0 0 1 * *", "2026-02-01T00:00"),
        ("0 0 L * *", "2026-01-31T00:00"),
        ("0 0 * * sun#2", "2026-01-11T00:00"),
        ("30 0 0 1 3 *", "2026-03-01T00:00:30"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
    ]
    for expression, expected in cases:
        with subtests.test(expression=expression, expected=expected):
            assert Cron(expression).first(instant_at("2026-01-03T12:00", "UTC")) == instant_at(expected, "UTC")


def test_invalid_cron_expressions_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("0 9 * *", "has 4 fields"),
        ("", "has 0 fields"),
        ("@reboot", "fires at certain times, not when something starts. Enqueue the job with `manage.py skipqueue"),
        ("@fortnightly", "the names are @hourly, @daily"),
        ("61 * * * *", "Bad minute"),
        ("0 9 * * fri-mon", "Bad day-of-week"),
        ("0 9 * * montag", "Bad day-of-week"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("*/0 * * * *", "Bad minute"),
        ("L/2 * * * *", "Bad minute"),
    ]
    for expression, problem in cases:
        with subtests.test(expression=expression, problem=problem), pytest.raises(InvalidOption, match=problem):
            Cron(expression)


def test_unknown_time_zones_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["Europe/Bonn", "", "../etc/passwd", "/etc/localtime", "Europe", "a" * 5_000, "\0"]
    for zone in cases:
        with subtests.test(zone=zone), pytest.raises(InvalidOption, match="there is no time zone"):
            Cron("* * * * *", zone)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = builtins.__import__

    def import_without_cronsim(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_cronsim)
    with pytest.raises(InvalidOption, match=r"pip install 'django-skipqueue\[cron\]'"):
        Cron("1 2 3 4 *")
    assert Every(timedelta(minutes=5)).first(FIRST) == FIRST + timedelta(minutes=5)


# Intervals

intervals = st.timedeltas(timedelta(seconds=1), timedelta(days=400))


@settings(max_examples=100)
@given(intervals, moments, moments)
def test_an_interval_keeps_its_rhythm(interval: timedelta, planned: datetime, now: datetime) -> None:
    planned, now = min(planned, now), max(planned, now)
    table = Every(interval)
    next_time = table.after(now, planned=planned)
    assert next_time is not None
    assert now < next_time <= now + interval
    assert (next_time - planned) % interval == timedelta(0)
    (last_time,) = table.newest(now, planned=planned, limit=1)
    assert last_time == next_time - interval
    assert table.newest(now, planned=planned, limit=5) == sorted(
        time for number in range(5) if (time := last_time - number * interval) >= planned
    )


def test_invalid_intervals_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [timedelta(0), timedelta(milliseconds=9), timedelta(-1), timedelta(4000), 5]
    for interval in cases:
        with subtests.test(interval=interval), pytest.raises(InvalidOption, match="an interval must be"):
            Every(interval)


def test_a_timetable_has_either_a_cron_expression_or_an_interval() -> None:
    assert timetable(cron="", interval=timedelta(minutes=1), zone="UTC") == Every(timedelta(minutes=1))
    for cron, interval in (("", None), ("* * * * *", timedelta(minutes=1))):
        with pytest.raises(InvalidOption, match="either a cron expression or an interval"):
            timetable(cron=cron, interval=interval, zone="UTC")


@pytest.mark.parametrize(("nickname", "expression"), [("@daily", "0 0 * * *"), ("@hourly", "0 * * * *")])
def test_the_nicknames_of_cron_equal_their_expressions(nickname: str, expression: str) -> None:
    by_nickname, by_expression = (parsed(text) for text in (nickname, expression))
    assert (by_nickname.minutes, by_nickname.hours, by_nickname.weekdays) == (
        by_expression.minutes,
        by_expression.hours,
        by_expression.weekdays,
    )

"""The types of the command line's options: durations, times, ids of jobs and arguments."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils.timezone import get_current_timezone, localtime, override

from django_skipqueue.console.cli.options import argument, job_id, positive
from django_skipqueue.console.durations import duration, moment
from django_skipqueue.events.log_format import in_words


def test_durations_are_read_with_their_units(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float]] = [
        ("90s", 90),
        ("15m", 900),
        ("1h", 3_600),
        ("2d", 172_800),
        ("1h30m", 5_400),
        ("45", 45),
        ("0.5s", 0.5),
    ]
    for text, seconds in cases:
        with subtests.test(text=text, seconds=seconds):
            assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [42, 200, 7_500, 273_600])
def test_a_duration_that_is_printed_can_be_typed(seconds: int) -> None:
    assert duration(in_words(seconds)) == timedelta(seconds=seconds)


def test_invalid_values_of_options_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[[str], Any], str]] = [
        *(
            (duration, text)
            for text in ("", "soon", "-5m", "5 m", "1w", "0", "0s", "1h30", "99999d", "1e3", "nan", "٣m")
        ),
        *((moment, text) for text in ("", "tomorrow", "2026-13-01", "2026-11-25 25:00", "25.11.2026", "-1h", "0s")),
        *((job_id, text) for text in ("", "x", "-1", "1.5", "##1", str(2**63))),
        *((argument, text) for text in ("", "payment_id", "=42")),
        *((positive, text) for text in ("0", "-1", "x", "9" * 20)),
    ]
    for read_option, text in cases:
        with subtests.test(read=read_option, text=text), pytest.raises(ArgumentTypeError):
            read_option(text)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_are_read_in_the_current_time_zone(zone: str, subtests: pytest.Subtests) -> None:
    with override(zone):
        midnight = localtime().replace(hour=0, minute=0, second=0, microsecond=0)
        tz = get_current_timezone()
        cases = {
            "today": midnight,
            "yesterday": midnight - timedelta(days=1),
            "2026-11-25": datetime(2026, 11, 25, tzinfo=tz),
            "2026-11-25 14:30": datetime(2026, 11, 25, 14, 30, tzinfo=tz),
            "2026-11-25T14:30:05": datetime(2026, 11, 25, 14, 30, 5, tzinfo=tz),
            "2026-11-25T14:30Z": datetime(2026, 11, 25, 14, 30, tzinfo=UTC),
        }
        for text, expected in cases.items():
            with subtests.test(text=text):
                assert moment(text) == expected


def test_a_time_may_be_given_as_a_duration() -> None:
    assert moment("1h30m") == timedelta(minutes=90)


def test_the_option_arg_is_split_at_the_first_equals_sign() -> None:
    assert argument("order.id=a=b") == ("order.id", "a=b")


def test_an_id_may_be_written_as_in_the_admin() -> None:
    assert job_id("#42") == job_id("42") == 42

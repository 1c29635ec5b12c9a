"""The types of options: functions that read a text from the command line, for `argparse`.

Each raises `ArgumentTypeError`, whose message becomes a usage error.
"""

import re
from argparse import ArgumentTypeError
from datetime import datetime, time, timedelta

from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import get_current_timezone, is_naive, localdate, make_aware

from ..search import is_id

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""Seconds of each unit."""

DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+|\d+(?:\.\d+)?", re.ASCII)

DAYS_AGO = {"today": 0, "yesterday": 1}

PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

LONGEST = timedelta(days=3_650)


def duration(text: str) -> timedelta:
    """`90s`, `15m`, `1h30m`, `2d`; a number without a unit is seconds."""
    if not DURATION.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 1h30m or 2d.")
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in PART.findall(text))
    if not 0 < seconds <= LONGEST.total_seconds():
        raise ArgumentTypeError(f"{text!r} must be more than 0, and at most {LONGEST.days}d.")
    return timedelta(seconds=seconds)


def moment(text: str) -> timedelta | datetime:
    """A duration, which means how long ago, or a time of the project's time zone: `today`, `2026-11-25 14:00`."""
    if DURATION.fullmatch(text):
        return duration(text)
    try:
        days_ago = DAYS_AGO.get(text)
        day = parse_date(text) if days_ago is None else localdate() - timedelta(days=days_ago)
        found = parse_datetime(text) if day is None else datetime.combine(day, time())
        if found is not None:
            return make_aware(found, get_current_timezone()) if is_naive(found) else found
    except (ValueError, OverflowError):  # of a date that does not exist
        pass
    raise ArgumentTypeError(
        f"{text!r} is neither a duration such as 15m or 2d, nor a time such as yesterday, 2026-11-25 or "
        "2026-11-25 14:00."
    )


class JobId(int):
    """The id of a job, with the alias of its database if that was given."""

    database: str | None = None


def job_id(text: str) -> JobId:
    """`42`, `#42` as in the admin, or the handle `queue_1:42`."""
    alias, colon, number = text.removeprefix("#").rpartition(":")
    if not is_id(number) or (colon and not alias):
        raise ArgumentTypeError(f"{text!r} is not the id of a job.")
    made = JobId(number)
    made.database = alias or None
    return made


def argument(text: str) -> tuple[str, str]:
    """`payment_id=42`, `order.id=7`: the name of an argument, or a path into one, and its value."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as payment_id=42.")
    return path, value


LONGEST_NUMBER = 18
"""Digits of a number that PostgreSQL counts to."""


def positive(text: str) -> int:
    if not text.isdecimal() or len(text) > LONGEST_NUMBER or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0, of at most {LONGEST_NUMBER} digits.")
    return int(text)

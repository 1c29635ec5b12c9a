"""Durations and times as text: format them for pages and commands, and parse them from JSON and the command line."""

import re
from argparse import ArgumentTypeError
from datetime import datetime, time, timedelta

from django.utils.dateparse import parse_date, parse_datetime
from django.utils.formats import date_format, number_format
from django.utils.timezone import get_current_timezone, is_aware, is_naive, localdate, localtime, make_aware
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models.expressions import END_OF_TIME, FIRST_TIME

UNITS = (
    (86_400, _("%(number)s d")),
    (3_600, _("%(number)s h")),
    (60, _("%(number)s min")),
    (1, _("%(number)s s")),
)
"""Each unit in seconds, the largest first."""


def span(duration: timedelta | float) -> str:
    """Format a duration, or a number of seconds: `3 ms`, `1.4 s`, `45 s`, `3 min 20 s`, `2 d 5 h`."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    if seconds < 0.9995:
        decimals = 0 if seconds >= 0.01 or not seconds else 1
        return gettext("%(number)s ms") % {"number": _rounded(seconds * 1000, decimals)}
    if seconds < 9.95:
        return gettext("%(number)s s") % {"number": _rounded(seconds, 1)}
    remaining_seconds = round(seconds)
    index = next(index for index, (size, _) in enumerate(UNITS) if remaining_seconds >= size)
    parts = []
    for size, text in UNITS[index : index + 2]:
        amount, remaining_seconds = divmod(remaining_seconds, size)
        if amount:
            parts.append(str(text) % {"number": amount})
    return " ".join(parts)


def distance(moment: datetime, now: datetime) -> str:
    """Describe `moment` relative to `now`: `3 min ago`, `in 2 h`, `now`."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return gettext("now")
    return (gettext("in %(span)s") if seconds > 0 else gettext("%(span)s ago")) % {"span": roughly(seconds)}


def exact(moment: datetime) -> str:
    """Format a time to the second, in the current time zone."""
    return date_format(localtime(moment) if is_aware(moment) else moment, "Y-m-d H:i:s T")


def roughly(duration: timedelta | float) -> str:
    """Format a duration, or a number of seconds, in its largest unit only: `0 s`, `45 s`, `3 min`, `2 d`."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    size = next((size for size, _ in UNITS if seconds >= size), 1)
    return span(round(seconds / size) * size) if size > 1 else gettext("%(number)s s") % {"number": round(seconds)}


def _rounded(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return number_format(text, decimals) if decimals else text


def moment_of(value: object) -> datetime | None:
    """Parse a time from PostgreSQL's JSON. Return `None` for other values, and for times that Python cannot have."""
    try:
        moment = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:  # well formed, but there is no such day
        return None
    return moment if moment and is_aware(moment) and FIRST_TIME <= moment < END_OF_TIME else None


def clock_time(moment: datetime, now: datetime) -> str:
    """Format a time to the second, in the current time zone. Add the date unless it is today."""
    local_time, today = localtime(moment), localtime(now).date()
    return date_format(local_time, "H:i:s" if local_time.date() == today else "Y-m-d H:i:s")


def held_since(name: str, since: datetime, now: datetime) -> str:
    """Say which external system has a running job: `with NAME since 14:02:11`."""
    return gettext("with %(holder)s since %(time)s") % {"holder": name, "time": clock_time(since, now)}


SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The number of seconds of each unit."""

TYPED_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+|\d+(?:\.\d+)?", re.ASCII)

DAYS_AGO = {"today": 0, "yesterday": 1}

TYPED_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

LONGEST_TYPED_DURATION = timedelta(days=3_650)


def duration(text: str) -> timedelta:
    """Parse `90s`, `15m`, `1h30m` or `2d`; a number without a unit means seconds."""
    if not TYPED_DURATION.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m, 1h30m or 2d.")
    seconds = sum(float(number) * SECONDS_OF_UNIT[unit or "s"] for number, unit in TYPED_PART.findall(text))
    if not 0 < seconds <= LONGEST_TYPED_DURATION.total_seconds():
        raise ArgumentTypeError(f"{text!r} must be more than 0, and at most {LONGEST_TYPED_DURATION.days}d.")
    return timedelta(seconds=seconds)


def moment(text: str) -> timedelta | datetime:
    """Parse a duration, or a time in the project's time zone: `today`, `2026-11-25 14:00`."""
    if TYPED_DURATION.fullmatch(text):
        return duration(text)
    try:
        days_ago = DAYS_AGO.get(text)
        day = parse_date(text) if days_ago is None else localdate() - timedelta(days=days_ago)
        parsed = parse_datetime(text) if day is None else datetime.combine(day, time())
        if parsed is not None:
            return make_aware(parsed, get_current_timezone()) if is_naive(parsed) else parsed
    except (ValueError, OverflowError):  # the date does not exist
        pass
    raise ArgumentTypeError(
        f"{text!r} is neither a duration such as 15m or 2d, nor a time such as yesterday, 2026-11-25 or "
        "2026-11-25 14:00."
    )

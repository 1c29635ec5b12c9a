"""A schedule in plain language: `every 5 min`, `at 09:00, Monday to Friday`. In the language of the reader."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.translation import gettext

from ..exceptions import InvalidOption
from ..periodic.timetable import parsed
from .durations import span

MOST_TIMES = 6
"""Times of the day that are listed; with more, the expression itself is shown."""

LAST, LAST_WEEKDAY = -1000, -1001
"""The library's numbers for the last day of a month, and the last one from Monday to Friday."""

ALL_DAYS, ALL_WEEKDAYS, ALL_MONTHS = set(range(1, 32)), set(range(7)), set(range(1, 13))


def in_words(*, cron: str, interval: timedelta | None) -> str:
    """What the columns of a schedule mean. The expression itself if it is too complicated, or cannot be used."""
    if interval is not None:
        return gettext("every %(span)s") % {"span": span(interval)}
    try:
        fields = parsed(cron)
    except InvalidOption:
        return cron
    times = _times(fields)
    if times is None:
        return cron
    return ", ".join(filter(None, [times, _days(fields), _months(fields)]))


def _times(fields: Any) -> str | None:
    seconds, minutes, hours = (sorted(each) for each in (fields.seconds, fields.minutes, fields.hours))
    if hours == list(range(24)):
        return _through_the_day(seconds, minutes)
    if seconds != [0] or len(minutes) * len(hours) > MOST_TIMES:
        return None
    listed = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    return gettext("at %(times)s") % {"times": _listed(listed)}


def _through_the_day(seconds: Sequence[int], minutes: Sequence[int]) -> str | None:
    if minutes == list(range(60)):
        step = _step(seconds)
        return None if step is None else gettext("every %(span)s") % {"span": span(step or 60)}
    if list(seconds) != [0]:
        return None
    step = _step(minutes)
    if step:
        return gettext("every %(span)s") % {"span": span(60 * step)}
    if list(minutes) == [0]:
        return gettext("every hour")
    if len(minutes) > MOST_TIMES:
        return None
    return gettext("every hour at %(minutes)s") % {"minutes": _listed([f":{minute:02}" for minute in minutes])}


def _step(numbers: Sequence[int]) -> int | None:
    """The distance of numbers that divide 60 into equal parts, from 0 on; 0 if it is 0 alone; else `None`."""
    if list(numbers) == [0]:
        return 0
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and 60 % step == 0 and list(numbers) == list(range(0, 60, step)) else None


def _days(fields: Any) -> str:
    of_week = {day % 7 if isinstance(day, int) else day for day in fields.weekdays}
    by_month = "" if fields.days >= ALL_DAYS else _days_of_month(fields.days)
    by_week = "" if of_week >= ALL_WEEKDAYS else _days_of_week(of_week)
    if by_month and by_week:
        both = gettext("%(days)s, if it is %(weekdays)s") if fields.day_and else gettext("%(days)s or %(weekdays)s")
        return both % {"days": by_month, "weekdays": by_week}
    return by_month or by_week or gettext("every day") * (set(fields.hours) != set(range(24)))


def _days_of_month(days: Iterable[int]) -> str:
    if set(days) == {LAST}:
        return gettext("on the last day of the month")
    if set(days) == {LAST_WEEKDAY}:
        return gettext("on the last working day of the month")
    numbered = [gettext("day %(day)s") % {"day": day} for day in sorted(days) if day > 0]
    return gettext("on %(days)s of the month") % {"days": _listed(numbered)}


def _days_of_week(days: set[Any]) -> str:
    plain = sorted((day - 1) % 7 for day in days if isinstance(day, int))  # Monday is 0, as in Python
    if len(plain) > 2 and plain == list(range(plain[0], plain[-1] + 1)):
        span_of = {"first": WEEKDAYS[plain[0]], "last": WEEKDAYS[plain[-1]]}
        named = [gettext("%(first)s to %(last)s") % span_of]
    else:
        named = [str(WEEKDAYS[day]) for day in plain]
    for day, number in sorted(day for day in days if not isinstance(day, int)):
        which = gettext("the last %(weekday)s of the month")
        if number != LAST:
            which = gettext("%(weekday)s number %(number)s of the month")
        named.append(which % {"weekday": WEEKDAYS[(day - 1) % 7], "number": number})
    return _listed(named)


def _months(fields: Any) -> str:
    if fields.months >= ALL_MONTHS:
        return ""
    return gettext("only in %(months)s") % {"months": _listed([str(MONTHS[month]) for month in sorted(fields.months)])}


def _listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(texts) == 1:
        return texts[0]
    return gettext("%(first)s and %(last)s") % {"first": ", ".join(texts[:-1]), "last": texts[-1]}

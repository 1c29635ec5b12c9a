"""Spans of time as people say them: the two largest units, and no more precision than helps."""

from datetime import datetime, timedelta

from django.utils.translation import gettext

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def span(duration: timedelta | float) -> str:
    """A duration, or seconds: `3 ms`, `1.4 s`, `45 s`, `3 min 20 s`, `2 d 5 h`."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 or not seconds else f"{seconds * 1000:.1f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    index = next(index for index, (_, size) in enumerate(UNITS) if rest >= size)
    parts = []
    for unit, size in UNITS[index : index + 2]:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts)


def distance(moment: datetime, now: datetime) -> str:
    """How far `moment` is from `now`, and on which side: `3 min ago`, `in 2 h`, `now`."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return gettext("now")
    return (gettext("in %s") if seconds > 0 else gettext("%s ago")) % roughly(seconds)


def roughly(duration: timedelta | float) -> str:
    """A duration, or seconds, in its largest unit alone: `0 s`, `45 s`, `3 min`, `2 d`."""
    seconds = abs(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    size = next((size for _, size in UNITS if seconds >= size), 1)
    return span(round(seconds / size) * size) if size > 1 else f"{seconds:.0f} s"

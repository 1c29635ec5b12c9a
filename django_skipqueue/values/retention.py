"""For how long something is kept. Pure."""

from datetime import timedelta

LONGEST_RETENTION = timedelta(days=100 * 365)

Retention = timedelta | int | float | None
"""A timedelta or seconds; `None`: for ever."""


def as_time(kept: Retention) -> timedelta | None:
    """A retention as a timedelta; `None`: for ever."""
    return timedelta(seconds=kept) if isinstance(kept, int | float) else kept


def is_retention(kept: object) -> bool:
    if isinstance(kept, bool):
        return False
    if isinstance(kept, timedelta):
        return timedelta(0) <= kept <= LONGEST_RETENTION
    return kept is None or (isinstance(kept, int | float) and 0 <= kept <= LONGEST_RETENTION.total_seconds())

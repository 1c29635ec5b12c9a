"""The methods that read the failed attempts by their cause, from the roll-ups.

Invariant: their cost does not grow with the number of jobs or of failed attempts.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ..values.cause import Cause
from . import sql
from .statements import Statements

MOST_RANKED = 1_000
"""Causes that are looked at to find those that fail most often."""


class FailureCounts(NamedTuple):
    """The failed attempts with one cause. A failed attempt may be retried: these are not failed jobs."""

    cause: Cause
    first_at: datetime
    last_at: datetime
    last_line: int | None
    """In the file of the place, of the last attempt."""
    last_job_id: int
    in_hour: int
    """Those of the last 60 minutes."""
    in_day: int
    """Those of the current hour and the 23 before it."""
    in_week: int
    """Those of the current hour and the 167 before it."""
    by_hour: Mapping[int, int]
    """The numbers above zero of these 168 hours; each hour as its number since the epoch."""
    now: datetime
    """The database's time."""


class Failures(Statements):
    """Used by pages."""

    def failing(self, *, limit: int) -> list[FailureCounts]:
        """The causes of the last 7 days, those first that failed most often in the last hour, then in 24 hours."""
        return [_counts(row) for row in self.rows(sql.FAILING, {"among": MOST_RANKED, "limit": limit})]

    def failures_of(self, cause: Cause) -> FailureCounts | None:
        return next((_counts(row) for row in self.rows(sql.FAILURES_OF, cause._asdict())), None)


def _counts(row: tuple[Any, ...]) -> FailureCounts:
    task, exception, place, *values, hours, numbers, now = row
    by_hour = dict(zip(hours or (), numbers or (), strict=True))
    return FailureCounts._make([Cause(task, exception, place), *values, by_hour, now])

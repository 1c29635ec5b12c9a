"""Counts that stop at a maximum, and a time budget that several queries share.

A page does not need the exact number of a million jobs, and an exact count would read them all.
"""

import json
import time
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext

MOST_JOBS_COUNTED = 10_000
"""A list, or a state of jobs, is counted up to this number."""

MOST_BLOCKED, SCRAPED_BLOCKED = 10_000, 2_000
"""Pages and commands count blocked jobs up to the first number; the metrics, up to the second."""

MOST_HALTING, SCRAPED_HALTING = 5_000, 1_000
"""Pages and commands read at most the first number of failed jobs that halt a sequence; the metrics, the second."""

SCRAPED_QUEUES = {"most": 1_000, "least": 50, "together": 10_000, "most_running": 2_000}
"""The arguments of `queues_now` for the metrics; its defaults are for pages and commands."""

SCRAPED_KEYS = 500
"""The metrics count keys with waiting jobs up to this number."""

MOST_JOBS_OF_KEY_COUNTED = 500
"""For one key, at most this many jobs that hold a permit are counted, and at most this many that wait."""

MOST_JOBS_OF_BATCH = 300_000
"""The jobs of one batch in one status are counted up to this number, if there is time."""


def grouped(number: int) -> str:
    """Format a number with the thousands separators of the current language."""
    return str(number) if 0 <= number < 1_000 else number_format(number, force_grouping=True)


def rate_in_words(per_minute: float) -> str:
    return grouped(round(per_minute)) if per_minute >= 9.95 or not per_minute else number_format(per_minute, 1)


def expected(jobs: "QuerySet[Any]") -> int:
    """Return PostgreSQL's estimate of the number of these jobs, from its statistics. It does not read the jobs."""
    [plan] = json.loads(jobs.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


@dataclass(frozen=True)
class Count:
    """A number of jobs that is exact up to `cap`; a higher number only means that there are more."""

    found: int
    is_lower_bound: bool = False
    """Whether there may be more jobs, although fewer than `cap` were found."""
    cap: int = field(default_factory=lambda: MOST_JOBS_COUNTED)
    estimate: int = 0
    """An estimate of the number, if there are more than `cap`; 0 if there is no estimate."""

    @classmethod
    def of(cls, jobs: "QuerySet[Any]") -> "Count":
        """Count `jobs`, in their order, up to the cap."""
        return cls(jobs[: MOST_JOBS_COUNTED + 1].count())

    @classmethod
    def in_any_order(cls, jobs: "QuerySet[Any]") -> "Count":
        """Count `jobs` up to the cap, in any order, so that PostgreSQL can often read an index without the table.

        Use it for few jobs, or for jobs that an index finds without an ORDER BY.
        """
        return cls.of(jobs.order_by().values("pk"))

    def or_about(self, number: int) -> "Count":
        """Add `number`, rounded to two digits, as an estimate, if the count stopped below it."""
        rounded = round(number, 2 - len(str(number)))
        return replace(self, estimate=rounded) if self.is_capped and rounded > max(self.found, self.cap) else self

    @property
    def is_capped(self) -> bool:
        """Whether there are, or may be, more jobs than were counted."""
        return self.is_lower_bound or self.found > self.cap

    @property
    def shown(self) -> int:
        return self.estimate or min(self.found, self.cap)

    def __str__(self) -> str:
        return f"{grouped(self.shown)}+" if self.is_capped else grouped(self.shown)

    @property
    def in_words(self) -> str:
        number = {"number": grouped(self.shown)}
        if self.estimate:
            return gettext("about %(number)s") % number
        if self.found > self.cap:
            return gettext("more than %(number)s") % number
        return gettext("at least %(number)s") % number if self.is_lower_bound else number["number"]


class TimeBudget:
    """Divides a number of seconds among steps that run one after the other.

    A step gets `most` seconds, unless a later step would then have fewer than `least`. So a few steps may wait for a
    locked table, and all other steps still have their turn. `steps`: the number of steps.
    """

    def __init__(self, seconds: float, *, steps: int, most: float, least: float) -> None:
        self._ends_at = time.monotonic() + seconds
        self._steps_left = steps
        self._most = most
        self._least = least

    def next_seconds(self) -> float:
        """Return how many seconds the next step may take."""
        self._steps_left -= 1
        spare_seconds = self._ends_at - time.monotonic() - self._steps_left * self._least
        return min(self._most, max(self._least, spare_seconds))

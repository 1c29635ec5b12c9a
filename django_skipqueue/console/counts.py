"""Counts that stop at a maximum, and a number of seconds that several queries share.

A page needs no exact number of a million jobs, and an exact count reads all of the jobs.
"""

import json
import time
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext

MOST_JOBS_COUNTED = 10_000
"""The maximum of jobs that are counted in a list, or in a state."""

MOST_BLOCKED, SCRAPED_BLOCKED = 10_000, 2_000
"""The maximum of blocked jobs that are counted in all queues: for a page or a command, and for the metrics."""

MOST_HALTING, SCRAPED_HALTING = 5_000, 1_000
"""The maximum of failed jobs of sequences that are read: for a page or a command, and for the metrics."""

SCRAPED_QUEUES = {"most": 1_000, "least": 50, "together": 10_000, "most_running": 2_000}
"""Queued and running jobs, for the metrics: arguments of `queues_now`, whose defaults are for pages and commands."""

SCRAPED_KEYS = 500
"""The maximum of keys with waiting jobs that the metrics read."""

MOST_JOBS_OF_KEY_COUNTED = 500
"""The maximum of jobs of one key that are counted: of the jobs that hold a permit, and of the jobs that wait."""

MOST_JOBS_OF_BATCH = 300_000
"""The maximum of jobs of one batch in one status that are counted, if there is time."""


def grouped(number: int) -> str:
    """The number with the separators that the language puts between its thousands."""
    return str(number) if 0 <= number < 1_000 else number_format(number, force_grouping=True)


def rate_in_words(per_minute: float) -> str:
    return grouped(round(per_minute)) if per_minute >= 9.95 or not per_minute else number_format(per_minute, 1)


def expected(jobs: "QuerySet[Any]") -> int:
    """How many of these jobs the planner expects, from the statistics of the last ANALYZE. Reads no row."""
    [plan] = json.loads(jobs.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


@dataclass(frozen=True)
class Count:
    """A number that is exact up to `cap`, and stands for "more" above it."""

    found: int
    is_lower_bound: bool = False
    """Whether there may be more, though fewer than the cap were found."""
    cap: int = field(default_factory=lambda: MOST_JOBS_COUNTED)
    estimate: int = 0
    """About how many there are, if more than `cap`, and more than were found; 0 if nobody can tell."""

    @classmethod
    def of(cls, jobs: "QuerySet[Any]") -> "Count":
        """Count `jobs`, in their order, as far as the cap."""
        return cls(jobs[: MOST_JOBS_COUNTED + 1].count())

    @classmethod
    def in_any_order(cls, jobs: "QuerySet[Any]") -> "Count":
        """Count the ids of `jobs` as far as the cap: without an order, PostgreSQL reads most indexes without the table.

        For few jobs, or for jobs that an index finds without the help of an order.
        """
        return cls.of(jobs.order_by().values("pk"))

    def or_about(self, number: int) -> "Count":
        """This count with `number` as its estimate, rounded to two digits, if the count stops below `number`."""
        rounded = round(number, 2 - len(str(number)))
        return replace(self, estimate=rounded) if self.is_capped and rounded > max(self.found, self.cap) else self

    @property
    def is_capped(self) -> bool:
        """Whether there are more jobs than the cap, or may be more jobs than were found."""
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
    """Divides a number of seconds among parts that run one after the other.

    A part gets `most` seconds, unless each later part would then have fewer than `least`. So a few parts may wait for a
    locked table, and every other part still has its turn.
    """

    def __init__(self, seconds: float, *, parts: int, most: float, least: float) -> None:
        self._ends_at = time.monotonic() + seconds
        self._parts = parts
        self._most = most
        self._least = least

    def share(self) -> float:
        """The seconds of the next part."""
        self._parts -= 1
        to_spare = self._ends_at - time.monotonic() - self._parts * self._least
        return min(self._most, max(self._least, to_spare))

"""Counts that stop, and a time that is shared out among queries.

A page needs no exact number of a million jobs, and an exact count reads all of them.

Queries that run one after the other share a time, so that all of them together keep within it.
"""

import json
import time
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import QuerySet
from django.utils.formats import number_format
from django.utils.translation import gettext

MOST_JOBS_COUNTED = 10_000
"""Jobs of a list, or in a state."""


MOST_BLOCKED, SCRAPED_BLOCKED = 10_000, 2_000
"""Blocked jobs of all queues, those first that were enqueued first: of a page or command, and of the metrics."""

MOST_HALTING, SCRAPED_HALTING = 5_000, 1_000
"""Failed jobs of sequences that are looked at, likewise."""

SCRAPED_QUEUES = {"most": 1_000, "least": 50, "together": 10_000, "most_running": 2_000}
"""Queued and running jobs, for the metrics: arguments of `queues_now`, whose defaults are for pages and commands."""

SCRAPED_KEYS = 500
"""Keys with waiting jobs, for the metrics."""

MOST_JOBS_OF_KEY = 500
"""Jobs of one key: of those that hold something, and of those that wait for it."""

MOST_JOBS_OF_BATCH = 300_000
"""Jobs of one batch in one status, if there is time."""


def grouped(number: int) -> str:
    """The number with separators between its thousands. One without any needs no format of the language."""
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
    is_least: bool = False
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
        """Count the ids of `jobs` as far as the cap: without an order, most indexes are read without the table.

        For jobs that an index finds, or few: the order would not choose the index.
        """
        return cls.of(jobs.order_by().values("pk"))

    def or_about(self, number: int) -> "Count":
        """This count with an estimate, rounded to two digits, if it stops short of it."""
        rounded = round(number, 2 - len(str(number)))
        return replace(self, estimate=rounded) if self.is_capped and rounded > max(self.found, self.cap) else self

    @property
    def is_capped(self) -> bool:
        """Whether there are more than the cap, or may be more than were found."""
        return self.is_least or self.found > self.cap

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
        return gettext("at least %(number)s") % number if self.is_least else number["number"]


class TimeBudget:
    """Shares out a number of seconds among a number of parts.

    Each part gets `most` seconds, as long as `least` remain for each of those after it. So a few parts that wait for a
    locked table take what is to spare, and every other part still has its turn.
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

"""A window: the part of a list that is searched, for tasks, arguments and all else that no index finds.

Invariant: no page searches more than `WINDOW_SIZE` jobs, and the page says which.
"""

from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from ..models import Job, Status
from .counts import Count, expected, grouped
from .list_order import Indexed

WINDOW_SIZE = 50_000
"""Jobs. PostgreSQL searches so many in some 20 ms, at worst 60."""

QUEUED_WINDOW_SIZE = 20_000
"""Of queued jobs, whose index has an expression: PostgreSQL reads the row of each to find the end of a window."""

MOST_WINDOWS = 20
"""The maximum of windows in a list: beyond a million jobs it takes too long to find the start of the next."""


def size_of(indexed: Indexed) -> int:
    return min(WINDOW_SIZE, QUEUED_WINDOW_SIZE) if indexed.status == Status.QUEUED else WINDOW_SIZE


@dataclass(frozen=True)
class Window:
    indexed: Indexed
    number: int
    """1 is the front of the list."""
    start: tuple[Any, ...] | None
    end: tuple[Any, ...] | None
    """The keys of the jobs after which it begins and ends; `None` if it begins or ends where the list does."""

    @classmethod
    def at(cls, indexed: Indexed, number: int) -> "Window":
        """The window of this number, at most the last of `MOST_WINDOWS`; the front if the list is too short for it."""
        size, number = size_of(indexed), min(number, MOST_WINDOWS)
        start = indexed.edge(size * (number - 1)) if number > 1 else None
        number = number if start else 1
        return cls(indexed, number, start, indexed.edge(size * number))

    @classmethod
    def whole(cls, indexed: Indexed) -> "Window":
        return cls(indexed, 1, None, None)

    def next(self) -> "Window | None":
        """The window after this one; `None` if there is none. Found by the keys, at any depth."""
        if self.end is None:
            return None
        return Window(self.indexed, self.number + 1, self.end, self.indexed.edge(size_of(self.indexed), after=self.end))

    @property
    def is_whole_list(self) -> bool:
        return self.start is None and self.end is None

    @property
    def has_next(self) -> bool:
        return self.end is not None and self.number < MOST_WINDOWS

    def rest(self) -> Count:
        """How many jobs of the list come after this window; an estimate if they are many."""
        if self.end is None:
            return Count(0)
        counted = self.indexed.count(Q(self.indexed.order.after(self.end)))
        if not counted.is_capped:
            return counted
        return counted.or_about(expected(self.indexed.jobs()) - self.number * size_of(self.indexed))

    @property
    def first(self) -> str:
        """The place in the list of its first job; 1 is the front."""
        return grouped((self.number - 1) * size_of(self.indexed) + 1)

    @property
    def last(self) -> str:
        return grouped(self.number * size_of(self.indexed))

    def among(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self.start is not None:
            jobs = jobs.filter(self.indexed.order.after(self.start))
        return jobs if self.end is None else jobs.filter(self.indexed.order.up_to(self.end))

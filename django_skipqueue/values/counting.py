"""Counts of recent events, histograms of durations, and the number of rows that a statement takes. Pure.

A histogram has fixed buckets, so that the counts of many processes and minutes can be added.

A statement takes half as many rows after each one that failed. After a success the number grows by an eighth only, so
that most statements succeed while PostgreSQL is slow.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final


class Recent:
    def __init__(self, span: float) -> None:
        self._span = span
        self.added: deque[tuple[float, int]] = deque()
        self._count = 0

    def add(self, count: int, now: float) -> None:
        self.added.append((now, count))
        self._count += count

    def count(self, now: float) -> int:
        """Number of events within the span before `now`. Forgets older ones."""
        while self.added and self.added[0][0] < now - self._span:
            self._count -= self.added.popleft()[1]
        return self._count


_MULTIPLES = 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0

BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    *_MULTIPLES,
    *(minutes * 60.0 for minutes in _MULTIPLES),
    *(hours * 3600.0 for hours in (1.5, 2, 3, 4, 6, 8, 12, 18, 24)),
)  # fmt: skip
"""The upper bounds of the buckets in seconds, inclusive. A last bucket holds all longer durations.

Above a second each bound is at most 1.5 times the previous bound. So a quantile above a second is wrong by no more than
this factor.
"""

BUCKETS: Final = len(BOUNDS) + 1


def histogram(durations: Iterable[float]) -> list[int]:
    """Count these durations, in seconds, by bucket, up to the last filled bucket. A negative one is in the first.

    To sort the durations takes a third of the time of a search for the bucket of each.
    """
    ordered = sorted(durations)
    counts: list[int] = []
    counted = 0
    for bound in BOUNDS:
        if counted == len(ordered):
            return counts
        below = bisect_right(ordered, bound, counted)
        counts.append(below - counted)
        counted = below
    return [*counts, len(ordered) - counted] if counted < len(ordered) else counts


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [here + there for here, there in zip_longest(one, other, fillvalue=0)]


def all_buckets(counts: Sequence[int]) -> list[int]:
    """The counts of all buckets, with a 0 for each bucket that was left out at the end."""
    return [*counts, *[0] * (BUCKETS - len(counts))]


def quantile(counts: Sequence[int], share: float, longest: float | None = None) -> float | None:
    """The duration in seconds that this share of all durations does not exceed; `None` if there are none.

    Within a bucket the durations count as evenly spread, as in Prometheus' `histogram_quantile`. The result is never
    above the highest bound, or above `longest`, the longest duration, if that is known.
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for index, (count, bound) in enumerate(zip(counts, BOUNDS, strict=False)):
        if count and below + count >= wanted:
            start = BOUNDS[index - 1] if index else 0.0
            return min(start + (bound - start) * (wanted - below) / count, longest or bound)
        below += count
    return BOUNDS[-1]


MOST_ROWS = 10_000
"""Rows of one statement while none has failed: more than a worker ever holds."""


class BatchSize:
    def __init__(self) -> None:
        self.rows = MOST_ROWS
        """How many rows the next statement may take."""

    def failed(self, rows: int) -> None:
        self.rows = max(1, min(rows, self.rows) // 2)

    def succeeded(self) -> None:
        if self.rows < MOST_ROWS:
            self.rows += max(1, self.rows // 8)

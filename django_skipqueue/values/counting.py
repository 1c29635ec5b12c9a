"""Count recent events, build histograms of durations, and adapt the number of rows that a statement writes.

All histograms have the same fixed buckets, so that the counts of several processes and minutes can be added.

After a statement has failed, `BatchSize` halves the number of rows for the next statement. After a success, it raises
the number by an eighth, so that most statements succeed while PostgreSQL is slow.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final


class Recent:
    """Counts events of the last `span` seconds."""

    def __init__(self, span: float) -> None:
        self._span = span
        self.added: deque[tuple[float, int]] = deque()  # times, each with the number of events that were added
        self._count = 0

    def add(self, count: int, now: float) -> None:
        self.added.append((now, count))
        self._count += count

    def count(self, now: float) -> int:
        """Return the number of events within the span before `now`, and forget all older events."""
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
"""The inclusive upper bounds of the buckets in seconds. One more bucket holds all longer durations.

Above one second, each bound is at most 1.5 times the previous bound, so that a quantile is never wrong by a larger
factor.
"""

BUCKETS: Final = len(BOUNDS) + 1


def histogram(durations: Iterable[float]) -> list[int]:
    """Count these durations (in seconds) by bucket, up to the last bucket that is not empty.

    A negative duration counts in the first bucket. Sorting the durations is three times as fast as searching the bucket
    of each duration.
    """
    ordered = sorted(durations)
    counts: list[int] = []
    counted = 0
    for bound in BOUNDS:
        if counted == len(ordered):
            return counts
        counted_with_bucket = bisect_right(ordered, bound, counted)
        counts.append(counted_with_bucket - counted)
        counted = counted_with_bucket
    return [*counts, len(ordered) - counted] if counted < len(ordered) else counts


def added(counts: Sequence[int], further_counts: Sequence[int]) -> list[int]:
    """Add two histograms bucket by bucket. A histogram may leave out empty buckets at its end."""
    return [count + further_count for count, further_count in zip_longest(counts, further_counts, fillvalue=0)]


def all_buckets(counts: Sequence[int]) -> list[int]:
    """Extend a histogram to all buckets, with a 0 for each empty bucket that was left out at its end."""
    return [*counts, *[0] * (BUCKETS - len(counts))]


def quantile(counts: Sequence[int], share: float, longest: float | None = None) -> float | None:
    """Return the duration in seconds which this share of all durations does not exceed; `None` without durations.

    Durations count as evenly spread within their bucket, as in Prometheus' `histogram_quantile`. The result is at most
    the highest bound, and at most `longest`, the longest duration, if it is given.
    """
    wanted_count = share * sum(counts)
    if not wanted_count:
        return None
    count_below = 0.0
    for index, (count, upper) in enumerate(zip(counts, BOUNDS, strict=False)):
        if count and count_below + count >= wanted_count:
            lower = BOUNDS[index - 1] if index else 0.0
            share_of_bucket = (wanted_count - count_below) / count
            return min(lower + (upper - lower) * share_of_bucket, longest or upper)
        count_below += count
    return BOUNDS[-1]


MOST_ROWS = 10_000
"""The most rows of one statement while no statement has failed. No worker ever has more rows to write."""


class BatchSize:
    """How many rows a statement writes at once. Shrinks after failures, and grows after successes."""

    def __init__(self) -> None:
        self.rows = MOST_ROWS
        """How many rows the next statement may take."""

    def failed(self, rows: int) -> None:
        self.rows = max(1, min(rows, self.rows) // 2)

    def succeeded(self) -> None:
        if self.rows < MOST_ROWS:
            self.rows += max(1, self.rows // 8)

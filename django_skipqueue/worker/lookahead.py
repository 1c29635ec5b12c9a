"""How many jobs a worker claims beyond its free slots. Pure: it is told the time.

As many as it has lately finished in about a fifth of a second, of which half run while the other half is claimed. Short
jobs: batches of hundreds, so that a round trip is shared by many.
Long jobs: none, so that nothing waits behind them while another worker is idle.
"""

from collections import deque

SPAN = 0.2
"""Seconds of work to hold in advance."""

LARGEST = 4_000
"""Jobs held in advance at most: what a crash of the worker would make wait for its recovery."""


class LookAhead:
    """Remembers how many jobs were finished within the last `SPAN`."""

    def __init__(self) -> None:
        self._finished: deque[tuple[float, int]] = deque()
        self._count = 0

    def finished(self, count: int, now: float) -> None:
        """Note that `count` jobs were finished by `now` (monotonic seconds)."""
        if count:
            self._finished.append((now, count))
            self._count += count

    def size(self, now: float) -> int:
        """How many jobs to hold beyond the free slots."""
        while self._finished and self._finished[0][0] < now - SPAN:
            self._count -= self._finished.popleft()[1]
        return min(self._count, LARGEST)

"""How many jobs a worker claims beyond its free places, and how many of them it keeps. Pure: it is told the time.

It claims as many as it has lately finished in about a fifth of a second, of which half run while the other half is
claimed. Short jobs: batches of hundreds, so that a round trip is shared by many. Long jobs: none, so that nothing waits
behind them while another worker is idle.

It keeps as many as it has lately finished in half a second: jobs that turn out to be longer than those before them go
back, and none waits here for much longer than that.
"""

from collections import deque

SPAN = 0.2
"""Seconds of work to hold in advance."""

LARGEST = 4_000
"""Jobs held in advance at most: what a crash of the worker would make wait for its recovery."""

PATIENCE = 0.5
"""Seconds for which a job may wait here. Longer than `SPAN`: another worker must claim again what is released."""


class Prefetch:
    """Remembers how many jobs were finished of late."""

    def __init__(self) -> None:
        self._within_span = Recent(SPAN)
        self._within_patience = Recent(PATIENCE)

    def finished(self, count: int, now: float) -> None:
        """Note that `count` jobs were finished by `now` (monotonic seconds)."""
        if count:
            self._within_span.add(count, now)
            self._within_patience.add(count, now)

    def size(self, now: float) -> int:
        """How many jobs to hold beyond the free places."""
        return min(self._within_span.count(now), LARGEST)

    def kept(self, now: float) -> int:
        """How many jobs that have not started may go on waiting."""
        return self._within_patience.count(now)


class Recent:
    """How many there were within the last `span` seconds."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._added: deque[tuple[float, int]] = deque()
        self._count = 0

    def add(self, count: int, now: float) -> None:
        """Note so many more."""
        self._added.append((now, count))
        self._count += count

    def count(self, now: float) -> int:
        """Forget what was before the span, and count the rest."""
        while self._added and self._added[0][0] < now - self._span:
            self._count -= self._added.popleft()[1]
        return self._count

"""How many jobs a worker claims beyond its free slots, and how many of these it keeps. Pure: callers pass the time.

A worker claims ahead as many jobs as it finished in the last fifth of a second. Half of them run while the other half
is claimed. Short jobs come in batches of hundreds, which share a round trip. Long jobs are not claimed ahead, so that
none waits behind them while another worker is idle.

A worker keeps as many waiting jobs as it finished in the last half second. It releases the others, if jobs turn out to
be longer than the previous ones. So no job waits here for much longer than half a second.
"""

from ..values.recent import Recent

SPAN = 0.2
"""Seconds of work to hold in advance."""

LARGEST = 4_000
"""Jobs held in advance, at most: after a crash of the worker they must wait for its recovery."""

PATIENCE = 0.5
"""Seconds for which a job may wait here. Longer than `SPAN`: another worker must claim a released job again."""


class Prefetch:
    def __init__(self) -> None:
        self._within_span = Recent(SPAN)
        self._within_patience = Recent(PATIENCE)

    def finished(self, count: int, now: float) -> None:
        """Note that `count` jobs were finished by `now` (monotonic seconds)."""
        if count:
            self._within_span.add(count, now)
            self._within_patience.add(count, now)

    def size(self, now: float) -> int:
        return min(self._within_span.count(now), LARGEST)

    def kept(self, now: float) -> int:
        """How many jobs that have not started may go on waiting."""
        return self._within_patience.count(now)

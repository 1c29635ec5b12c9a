"""How many jobs a worker holds for one runner: threads for `def` tasks, an event loop for `async def` tasks.

Invariant: jobs of one kind take no place of the other, and none waits here for long while another worker is idle.

Pure: it is told the time, in monotonic seconds.
"""

from .prefetch import LARGEST, Prefetch


class Capacity:
    """The places of one runner. Used by the control loop's thread."""

    def __init__(self, concurrency: int) -> None:
        self.prefetch = Prefetch()
        self._concurrency = concurrency

    def room(self, unfinished: int, now: float, *, most: int = LARGEST) -> int:
        """How many more jobs to claim: the free places and the look-ahead, less what is not finished.

        At most half of both at once, unless that is less than the places: one half runs while the database is asked for
        the other. most: how many to hold at most, unless there are more places.
        """
        capacity = self._concurrency + self.prefetch.size(now)
        if capacity > most:
            capacity = max(most, self._concurrency)
        return max(min(capacity - unfinished, max(self._concurrency, capacity // 2)), 0)

    def surplus(self, unfinished: int, now: float) -> int:
        """How many of the jobs that wait for a place would wait too long."""
        return max(unfinished - self._concurrency - self.prefetch.kept(now), 0)

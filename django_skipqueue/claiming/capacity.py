"""How many jobs a worker holds for one runner: threads for `def` tasks, an event loop for `async def` tasks.

Invariant: jobs of one runner take no slot of the other, and no job waits here for long while another worker is idle.

Pure: callers pass the time, in monotonic seconds.
"""

from .prefetch import LARGEST, Prefetch


class Capacity:
    """The slots of one runner, and the jobs claimed ahead. Used by the control loop's thread."""

    def __init__(self, concurrency: int) -> None:
        self.prefetch = Prefetch()
        self._concurrency = concurrency

    def room(self, unfinished: int, now: float, *, most: int = LARGEST) -> int:
        """How many more jobs to claim: the capacity less the jobs that are not finished.

        The capacity is concurrency + prefetch, capped at `most`, but never below concurrency. One claim asks for at
        most half of it (or the concurrency, if that is larger), so that one half runs while the other is claimed.
        """
        capacity = self._concurrency + self.prefetch.size(now)
        if capacity > most:
            capacity = max(most, self._concurrency)
        return max(min(capacity - unfinished, max(self._concurrency, capacity // 2)), 0)

    def surplus(self, unfinished: int, now: float) -> int:
        return max(unfinished - self._concurrency - self.prefetch.kept(now), 0)

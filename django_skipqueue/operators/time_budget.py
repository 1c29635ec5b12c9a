"""Share out a time among queries that run one after the other, so that all of them together keep within it."""

import time


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

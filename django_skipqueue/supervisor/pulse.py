"""Shows the thread of the health port, and a steward, whether the supervisor's control loop turns."""

import mmap
import time

LATE_AFTER = 30.0
"""Seconds from one turn of the loop to the next, at most. Statements that may take longer announce that."""

TURNED_AT, LATE_AT = range(2)
"""The places of the times."""


class Pulse:
    """Written by the control loop's thread, read by others. A fork shares its memory. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._times = memoryview(mmap.mmap(-1, 16)).cast("d")
        self.turn()

    @property
    def turned_at(self) -> float:
        return self._times[TURNED_AT]

    @property
    def late_at(self) -> float:
        """By when the loop shows again that it turns."""
        return self._times[LATE_AT]

    def turn(self, within: float = 0.0) -> None:
        """Show that the loop turns, and that it does so again within this many seconds, or `LATE_AFTER`."""
        now = time.monotonic()
        self._times[LATE_AT] = now + max(within, LATE_AFTER)
        self._times[TURNED_AT] = now

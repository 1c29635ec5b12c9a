"""Shows the thread of the health port whether the supervisor's control loop turns."""

import time

LATE_AFTER = 30.0
"""Seconds from one turn of the loop to the next, at most. Statements that may take longer announce that."""


class Pulse:
    """Written by the control loop's thread, read by others. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.turned_at = 0.0
        """When the loop last showed that it turns."""
        self._next_by = 0.0
        self.turn()

    def turn(self, within: float = 0.0) -> None:
        """Show that the loop turns, and that it does so again within this many seconds, or `LATE_AFTER`."""
        self.turned_at = time.monotonic()
        self._next_by = self.turned_at + max(within, LATE_AFTER)

    def is_late(self, now: float) -> bool:
        """Whether the loop should have turned before `now`."""
        return now > self._next_by

"""When a worker asks whether the jobs it holds are still its own.

Invariant: it asks about what it held at the last look already, and about nothing else: a job that is soon done costs no
statement, and a job that runs is asked about within a second.
"""

from collections.abc import Collection

from ..values.records import LeaseRef

INTERVAL = 0.4
"""Seconds between two looks."""


class CancelCheck:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_look = 0.0
        self._seen: set[LeaseRef] = set()

    def due(self, held: Collection[LeaseRef], now: float) -> list[LeaseRef]:
        """The leases to ask about now, of all that are held; none before it is time."""
        if now < self.next_look:
            return []
        self.next_look = now + INTERVAL
        old = self._seen.intersection(held)
        self._seen = set(held)
        return sorted(old)

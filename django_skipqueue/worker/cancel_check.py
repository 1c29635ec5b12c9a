"""Checks whether the leases of a worker's jobs are still valid.

Invariant: a check covers the jobs that the worker also held at the previous check, and no others. So a short job costs
no statement, and a long one is checked within a second.
"""

from collections.abc import Callable, Collection, Sequence

from ..runtime.service import Service
from ..values.records import LeaseRef
from ..values.times import NEVER

INTERVAL = 0.4
"""Seconds between two checks."""


class CancelCheck(Service):
    """The service that drops and interrupts jobs that were cancelled, or taken from this worker by a recovery."""

    name = "cancel_check"

    def __init__(
        self, held: Callable[[], Collection[LeaseRef]], drop_lost: Callable[[Sequence[LeaseRef]], object]
    ) -> None:
        """`held` returns all leases of the worker. `drop_lost` drops those of the given jobs whose leases are lost."""
        self._held = held
        self._drop_lost = drop_lost
        self._next_look = 0.0
        self._seen: set[LeaseRef] = set()

    @property
    def due_at(self) -> float:
        return self._next_look if self._held() else NEVER

    def run(self, now: float) -> None:
        """Check the leases that the worker also held at the previous check."""
        self._next_look = now + INTERVAL
        held = self._held()
        old = self._seen.intersection(held)
        self._seen = set(held)
        if old:
            self._drop_lost(sorted(old))

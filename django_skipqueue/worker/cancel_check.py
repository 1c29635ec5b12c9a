"""Asks whether the jobs that a worker holds are still its own.

Invariant: it asks about what it held at the last look already, and about nothing else: a job that is soon done costs no
statement, and a job that runs is asked about within a second.
"""

from collections.abc import Callable, Collection, Sequence

from ..runtime.service import NEVER, Service
from ..values.records import LeaseRef

INTERVAL = 0.4
"""Seconds between two looks."""


class CancelCheck(Service):
    """The service that drops and interrupts jobs that were cancelled, or taken from this worker by a recovery."""

    name = "cancel_check"

    def __init__(
        self, held: Callable[[], Collection[LeaseRef]], drop_lost: Callable[[Sequence[LeaseRef]], object]
    ) -> None:
        """`held` returns all leases that the worker has; `drop_lost` sees to those that the database says are lost."""
        self._held = held
        self._drop_lost = drop_lost
        self._next_look = 0.0
        self._seen: set[LeaseRef] = set()

    @property
    def due_at(self) -> float:
        """When to look again, as long as a job is held."""
        return self._next_look if self._held() else NEVER

    def run(self, now: float) -> None:
        """Ask about those that were held at the last look as well."""
        self._next_look = now + INTERVAL
        held = self._held()
        old = self._seen.intersection(held)
        self._seen = set(held)
        if old:
            self._drop_lost(sorted(old))

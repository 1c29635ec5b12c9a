"""Writes the counts of this process into the roll-ups, every few seconds.

Invariant: a process that dies loses the counts of one interval at most. Counts that could not be written are written
again with the next ones, unless PostgreSQL refuses their values. If the connection broke after the commit, the counts
of one interval are added twice.
"""

from typing import Any

from django.db import DatabaseError

from ..runtime.service import Periodic
from ..store import Store
from ..store.parameters import is_refused
from .tally import Tally

WRITE_INTERVAL = 10.0
"""Seconds between two writes."""


class WriteRollUps(Periodic):
    """Used by workers and supervisors. Sends no statement if nothing was counted."""

    name = "write_roll_ups"

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._left: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.run_again_in(WRITE_INTERVAL)

    def run(self, now: float) -> None:
        """Write the counts of the last write, if it failed, and then those since."""
        while self._left or not self._tally.is_empty:
            self._left = self._left or self._tally.take()
            self._store.roll_up(*self._left)
            self._left = None
        self.run_again_in(WRITE_INTERVAL)

    def refused(self, error: BaseException) -> None:
        """Try again later, without the counts if PostgreSQL cannot store their values."""
        if isinstance(error, DatabaseError) and is_refused(error):
            self._left = None
        super().refused(error)

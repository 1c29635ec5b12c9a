"""Asks the carrier not to begin the jobs that were cancelled. If it begins one all the same, its outcome is dropped."""

import time

from ..runtime.service import Periodic
from ..store import Store
from . import sql
from .connection import CarrierConnection

INTERVAL = 1.0
"""Seconds between two looks."""

MOST_REVOKED = 1_000
"""Jobs of one look."""


class RevokeCancelled(Periodic):
    """Used by the control loop's thread. What was cancelled while no relay looked is not revoked."""

    name = "revoke_cancelled"

    def __init__(self, store: Store, connection: CarrierConnection, *, carrier_id: str) -> None:
        self._store = store
        self._connection = connection
        self._carrier_id = carrier_id

    def run(self, now: float) -> None:
        """Look for the jobs that were cancelled since the last look, or a little before it."""
        values = {"carrier_id": self._carrier_id, "seconds": 2 * INTERVAL, "limit": MOST_REVOKED}
        rows = self._store.rows(sql.CANCELLED, values)
        if rows and self._connection.is_open:
            with self._connection.handling_errors():
                self._connection.carrier.revoke([(id, lease) for id, lease in rows])
        self.due_at = time.monotonic() + INTERVAL

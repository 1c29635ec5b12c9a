"""The row of a carrier among the workers: written by its relays, and kept when all of them are gone.

Invariant: the row exists before a job names the carrier. Nobody recovers the jobs of a carrier that has a row: what the
carrier has confirmed, it delivers or gives back.
"""

from typing import Any

from ...queue.store import Store
from ...worker.loop import Periodic
from . import sql
from .carrier import carrier_id, home_of
from .connection import CarrierConnection
from .settings import CarrierSettings
from .window import Window


class CarrierRow(Periodic):
    """As a service it writes the row, with what only a relay can see. Used by the control loop's thread."""

    name = "carrier_row"
    _next = 0.0

    def __init__(
        self,
        store: Store,
        settings: CarrierSettings,
        connection: CarrierConnection,
        window: Window,
        *,
        relay_id: str,
        interval: float,
    ) -> None:
        self._store, self._connection, self._window = store, connection, window
        self._row, self._relay_id = _row_of(settings), relay_id
        self._interval = interval
        self._is_reached = False  # by the last heartbeat
        self._refused = 0  # the refusals of the window that the row counts already
        self.is_written = False
        """Whether the row exists."""
        self.home = ""
        """The address for the outcomes of the carrier's jobs, made by `home_of`; empty until the row exists."""

    @property
    def due_at(self) -> float:
        is_news = self._connection.is_open and not self._is_reached and not self.has_failed
        return 0.0 if is_news else self._next

    @due_at.setter
    def due_at(self, moment: float) -> None:
        self._next = moment

    def run(self, now: float) -> None:
        """Write the row. Its heartbeat says when a relay was last alive. This relay has its own row already."""
        is_reached, refused = self._connection.is_open, self._window.jobs_refused
        _write(self._store, self._row, self._relay_id, is_reached=is_reached, refused=refused - self._refused)
        self._is_reached, self._refused = is_reached, refused
        if not self.home:
            self.home = _home(self._store, self._row)
        self.is_written = True
        self.run_again_in(self._interval)


def home_in(store: Store, settings: CarrierSettings) -> str:
    """The address for the outcomes of this carrier's jobs. Writes the row of the carrier, if there is none."""
    row = _row_of(settings)
    if not store.rows(sql.CARRIER_SINCE, {"carrier_id": row["id"]}):
        _write(store, row)
    return _home(store, row)


def _row_of(settings: CarrierSettings) -> dict[str, Any]:
    return {
        "id": carrier_id(settings.name),
        "name": settings.name,
        "hostname": "",
        "pid": 0,
        "queues": list(settings.queues),
        "concurrency": settings.window,
        "is_external": True,
    }


def _write(
    store: Store, row: dict[str, Any], relay_id: str | None = None, *, is_reached: bool = False, refused: int = 0
) -> None:
    """Write the row of the carrier, and what is known of it and of its relay beside their rows."""
    store.heartbeat_workers([row])
    seen = {"carrier_id": row["id"], "carrier": row["name"], "relay_id": relay_id}
    store.execute(sql.HEARTBEAT, {**seen, "is_reached": is_reached, "refused": refused})


def _home(store: Store, row: dict[str, Any]) -> str:
    ((since,),) = store.rows(sql.CARRIER_SINCE, {"carrier_id": row["id"]})
    return home_of(store.alias, since)

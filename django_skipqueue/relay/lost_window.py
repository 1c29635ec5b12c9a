"""Notices that the broker has lost a full window of jobs: then no job is handed over, and nothing says why.

A job that waits with the broker for longer than `WAIT` comes back, and one that a worker runs ends within its time
limit. If the window is full, and no job of it was handed over within both together, none of them is there any more.
"""

from ..events import relay_logs
from ..exceptions import UnknownTask
from ..runtime.service import Periodic
from ..setting_forms.carriers import CarrierSettings
from ..store import Store
from ..tasks.registry import registry
from . import sql
from .carrier import carrier_id
from .connection import CarrierConnection
from .window import Window

LOOK_INTERVAL = 30.0
"""Seconds between two looks, while the window is full."""

BROKERS_TIMEOUT = 1_800.0
"""Seconds after which RabbitMQ takes a message back from a worker that has not acknowledged it, by its default."""


def time_limit(task: str, timeout: float | None) -> float:
    """The seconds that an attempt of a carried job may take. `timeout` is that of the job itself."""
    try:
        return timeout or registry.get(task).timeout or BROKERS_TIMEOUT
    except UnknownTask:
        return BROKERS_TIMEOUT


def is_window_lost(store: Store, carrier: CarrierSettings) -> bool:
    """Whether the window is full, and each of its jobs should have ended or come back."""
    rows = store.rows(sql.CARRIED_BY_TASK, {"carrier_id": carrier_id(carrier.name)})
    return sum(number for *_, number, _ in rows) >= carrier.window and all(
        youngest > carrier.wait + time_limit(task, timeout) for task, timeout, _, youngest in rows
    )


class LostWindow(Periodic):
    """Used by the control loop's thread."""

    name = "lost_window"

    def __init__(
        self, store: Store, carrier: CarrierSettings, connection: CarrierConnection, window: Window, *, who: str
    ) -> None:
        self._store, self._carrier = store, carrier
        self._connection, self._window = connection, window
        self._who = who
        self._is_lost = False

    def run(self, now: float) -> None:
        """Log it once, when it is so."""
        looks = self._window.is_full and self._connection.is_open
        was_lost, self._is_lost = self._is_lost, looks and is_window_lost(self._store, self._carrier)
        if self._is_lost and not was_lost:
            relay_logs.carrier_window_lost(self._who, self._carrier.name, self._window.jobs.with_carrier)
        self.run_again_in(LOOK_INTERVAL)

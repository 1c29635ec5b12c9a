"""Checks the limits of the setting `ALERTS`, in one supervisor of all at a time."""

from collections.abc import Callable

from ..conf import settings
from ..runtime.service import Periodic
from ..store import Store
from ..values.alert_rules import limits
from ..values.times import NEVER
from . import sql
from .check import Alert, check, confirm

CHECK_INTERVAL = 20.0
"""Seconds between two checks, over all supervisors."""

CONFIRM_INTERVAL = 0.5
"""Seconds between two looks whether the sinks have handled the alerts."""


class WatchAlerts(Periodic):
    """Announces an incident by events, which the dispatcher's thread sends. Without limits it does nothing."""

    name = "alerts"

    def __init__(self, store: Store, *, delivered: Callable[[], bool]) -> None:
        """`delivered` returns whether the sinks have handled all events."""
        self._store = store
        self._delivered = delivered
        self._unconfirmed: list[Alert] = []

    def run(self, now: float) -> None:
        """Confirm what was announced; else check, if it is this supervisor's turn."""
        if self._unconfirmed:
            self._confirm()
            return
        wanted = limits(settings.alerts)
        if not wanted:
            self._store.execute(sql.FORGET_ALL)
            self.due_at = NEVER
            return
        if self._store.rows(sql.TAKE_TURN, {"interval": CHECK_INTERVAL - 1.0}):
            self._unconfirmed = check(self._store, wanted)
            for alert in self._unconfirmed:
                self._store.send(alert)
        self.run_again_in(CONFIRM_INTERVAL if self._unconfirmed else CHECK_INTERVAL)

    def _confirm(self) -> None:
        if self._delivered():
            while self._unconfirmed:
                confirm(self._store, self._unconfirmed[0])
                self._unconfirmed.pop(0)
        self.run_again_in(CONFIRM_INTERVAL if self._unconfirmed else CHECK_INTERVAL)

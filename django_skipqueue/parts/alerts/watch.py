"""Check the limits of `ALERTS` in one supervisor of all at a time, note the incidents, and claim what is announced.

Invariant: any number of processes may check at once. The beginning of an incident is announced by one of them, and so
is its end. If that process dies before it confirms, another one announces it again: rather twice than never.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from ...conf import settings
from ...queue.store import Store
from ...values.records import NEVER
from ...worker.loop import Periodic
from . import measure as sql
from .events import AlertOver, AlertRaised
from .measure import as_json, measure
from .settings import Limit, limits

CALM_SECONDS = 45.0
"""Seconds for which a limit must not be exceeded before its incident is over."""

PATIENCE = 60.0
"""Seconds after which an alert that was claimed and not confirmed is claimed by another process."""

Alert = AlertRaised | AlertOver


def check(store: Store, limits: Sequence[Limit]) -> list[Alert]:
    """Measure, and return the events to send. Each must be confirmed when the sinks have handled it."""
    measured = list(measure(store, limits))
    exceeded = [each for each in measured if each.is_exceeded]
    if exceeded:
        store.execute(sql.NOTE_EXCEEDED, {"exceeded": as_json(exceeded)})
    kept = [each for each in measured if not each.is_calm]
    store.execute(sql.NOTE_CALM, {"kept": as_json(kept), "calm": CALM_SECONDS})
    store.execute(sql.FORGET_CALM)
    store.execute(sql.RAISE)
    return [
        AlertOver(**incident, over_at=over_at) if is_announced else AlertRaised(**incident)
        for incident, over_at, is_announced in _claimed(store)
    ]


def confirm(store: Store, alert: Alert) -> None:
    statement = sql.CONFIRM_END if isinstance(alert, AlertOver) else sql.CONFIRM_BEGINNING
    store.execute(statement, {"rule": alert.rule, "queue_name": alert.queue_name})


def _claimed(store: Store) -> Iterator[tuple[dict[str, Any], datetime, bool]]:
    for *values, over_at, is_announced in store.rows(sql.CLAIM_ALERTS, {"patience": PATIENCE}):
        names = ("rule", "queue_name", "value", "limit", "since")
        yield {"database": store.alias, **dict(zip(names, values, strict=True))}, over_at, is_announced


CHECK_INTERVAL = 20.0
"""Seconds between two checks, over all supervisors."""

CONFIRM_INTERVAL = 0.5
"""Seconds between two looks whether the sinks have handled the alerts."""


class WatchAlerts(Periodic):
    """Announces an incident by events, which the dispatcher's thread sends. Without limits it does nothing."""

    name = "alerts"

    def __init__(self, store: Store, delivered: Callable[[], bool]) -> None:
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

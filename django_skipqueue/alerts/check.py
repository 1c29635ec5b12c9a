"""Check the limits, note the incidents, and claim what is to be announced.

Invariant: any number of processes may check at once. The beginning of an incident is announced by one of them, and so
is its end. If that process dies before it confirms, another one announces it again: rather twice than never.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ..events.events import AlertOver, AlertRaised
from ..store import Store
from ..values.alert_rules import Limit
from . import sql
from .measure import as_json, measure

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

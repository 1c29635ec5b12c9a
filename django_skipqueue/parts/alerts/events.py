"""The events of alerts, their log lines, and the sentence that a webhook shows."""

import logging
from dataclasses import dataclass
from datetime import datetime

from ... import signals
from ...conf import settings
from ...events.events import Event
from ...events.log_format import in_words, printable
from ...events.logs import write
from .settings import RULES


@dataclass(frozen=True)
class AlertRaised(Event):
    level, signal, sender = logging.ERROR, signals.alert_raised, "rule"

    database: str
    rule: str
    """`oldest_waiting`, `no_worker`, `failed_share`, `recoveries`, `schedule_missed` or `sequence_halted`."""
    queue_name: str
    """Empty: all queues that have no limit of their own for this rule."""
    value: float
    """Seconds, a share from 0 to 1, or a number of jobs."""
    limit: float
    since: datetime

    def write_lines(self) -> None:
        shown = {**_shown(self), "limit": amount(self.rule, self.limit)}
        write(logging.ERROR, "alert_raised", shown, extra={"queue_name": self.queue_name or None})


@dataclass(frozen=True)
class AlertOver(Event):
    """An incident is over. The fields are those of its `AlertRaised`, with the last value that exceeded the limit."""

    level, signal, sender = logging.INFO, signals.alert_over, "rule"

    database: str
    rule: str
    queue_name: str
    value: float
    limit: float
    since: datetime
    over_at: datetime

    def write_lines(self) -> None:
        shown = {**_shown(self), "lasted": _lasted(self)}
        write(logging.INFO, "alert_over", shown, extra={"queue_name": self.queue_name or None})


def webhook_failed(host: str, reason: str) -> None:
    write(logging.ERROR, "webhook_failed", {"host": host, "reason": reason})


def sentence(event: AlertRaised | AlertOver) -> str:
    """`oldest_waiting in queue mail is 6m12s, limit 5m00s`; at the end of an incident also how long it lasted.

    The queue is `mail on queue_1` if several databases hold queues.
    """
    queue = f" in queue {printable(event.queue_name)}" if event.queue_name else ""
    place = f"{queue} on {printable(event.database)}" if settings.serves_several else queue
    value, limit = amount(event.rule, event.value), amount(event.rule, event.limit)
    if isinstance(event, AlertOver):
        return f"{event.rule}{place} lasted {_lasted(event)}, last value {value}, limit {limit}"
    return f"{event.rule}{place} is {value}, limit {limit}"


def amount(rule: str, value: float) -> str:
    """A value or a limit with its unit: `5m00s`, `20 %`, `12`."""
    unit = RULES[rule].unit
    return in_words(value) if unit == "seconds" else f"{value:.3g}" if unit == "jobs" else f"{value * 100:.3g} %"


def _lasted(event: AlertOver) -> str:
    return in_words((event.over_at - event.since).total_seconds())


def _shown(event: AlertRaised | AlertOver) -> dict[str, str]:
    queue = {"queue": event.queue_name} if event.queue_name else {}
    return {"rule": event.rule, **queue, "value": amount(event.rule, event.value)}

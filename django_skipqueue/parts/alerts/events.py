"""The events about alerts, and their log lines."""

import logging
from dataclasses import dataclass
from datetime import datetime

from ... import signals
from ...events.events import Event
from ...events.log_format import in_words
from ...events.logs import write


@dataclass(frozen=True)
class AlertRaised(Event):
    level, signal, sender = logging.ERROR, signals.alert_raised, "rule"

    database: str
    rule: str
    """The code of the rule, such as `no-worker`."""
    subject: str
    """The queue, task, key or worker with the problem; empty if the rule finds at most one problem."""
    severity: str
    """`critical` or `warning`."""
    title: str
    """A sentence that describes the problem, in English."""
    since: datetime

    def write_lines(self) -> None:
        write(logging.ERROR, "alert_raised", _shown(self))


@dataclass(frozen=True)
class AlertOver(Event):
    """A problem is over. The severity and title come from the last check that found it."""

    level, signal, sender = logging.INFO, signals.alert_over, "rule"

    database: str
    rule: str
    subject: str
    severity: str
    title: str
    since: datetime
    over_at: datetime

    @property
    def lasted(self) -> str:
        return in_words((self.over_at - self.since).total_seconds())

    def write_lines(self) -> None:
        write(logging.INFO, "alert_over", {**_shown(self), "lasted": self.lasted})


def webhook_failed(host: str, reason: str) -> None:
    write(logging.ERROR, "webhook_failed", {"host": host, "reason": reason})


def _shown(event: AlertRaised | AlertOver) -> dict[str, str]:
    subject = {"subject": event.subject} if event.subject else {}
    return {"rule": event.rule, **subject, "severity": event.severity, "title": event.title}

"""Each log line of alerts."""

from datetime import UTC, datetime

from django_skipqueue.parts.alerts import events
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised


def write_lines() -> None:
    incident = ("default", "no_worker", "mail", 61.0, 60.0, datetime.now(UTC))
    AlertRaised(*incident).write_lines()
    AlertOver(*incident, datetime.now(UTC)).write_lines()
    events.webhook_failed("example.com", "HTTP status 500")

"""The log lines of alerts, for the tests of the reference."""

from datetime import UTC, datetime

from django_skipqueue.parts.alerts import events
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised


def write_lines() -> None:
    incident = ("default", "queue-without-worker", "mail", "critical", "1 job waits", datetime.now(UTC))
    AlertRaised(*incident).write_lines()
    AlertOver(*incident, datetime.now(UTC)).write_lines()
    events.webhook_failed("example.com", "HTTP status 500")

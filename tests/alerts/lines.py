"""Each log line of alerts."""

from datetime import UTC, datetime

from django_skipqueue.parts.alerts import events
from django_skipqueue.parts.alerts.events import AlertOver, AlertRaised


def write_lines() -> None:
    incident = ("default", "no_worker", "mail", 61.0, 60.0, datetime.now(UTC))
    events.alert_raised(AlertRaised(*incident))
    events.alert_over(AlertOver(*incident, datetime.now(UTC)))
    events.webhook_failed("example.com", "HTTP status 500")

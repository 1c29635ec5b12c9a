"""Post alerts to the URL in the setting `ALERTS_WEBHOOK`, as a receiver of the signals about alerts.

The receiver runs in the dispatcher's thread, or in the command `skipqueue alerts`, never in a control loop. It uses
only http and https, follows no redirects, and each attempt has a time limit. The URL is never logged, because the
webhook URLs of chats contain a secret.
"""

import json
import socket
import time
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django.dispatch import Signal

from ... import signals
from ...conf import settings
from ...events.log_format import printable
from .events import AlertOver, AlertRaised, webhook_failed

WEBHOOK_TIMEOUT = 5.0
"""Seconds the server may take to accept the connection, and to send each part of its response."""

WEBHOOK_PAUSES = (1.0, 3.0)
"""Seconds before the second and the third attempt."""


class NoRedirect(HTTPRedirectHandler):
    """Turns a redirect into an error, because it could lead anywhere."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request, so that urllib raises an error."""


OPENER = build_opener(NoRedirect)


def payload(name: str, event: AlertRaised | AlertOver) -> dict[str, Any]:
    """Return the JSON object to post. Chats such as Slack and Mattermost show the field `text`."""
    label, duration = event.severity.capitalize(), ""
    if isinstance(event, AlertOver):
        label, duration = "Over", f" (lasted {event.lasted})"
    on_database = f" on {printable(event.database)}" if settings.serves_several else ""
    return {
        "event": name,
        "text": f"{label}{on_database}: {event.title}{duration}",
        "rule": event.rule,
        "subject": event.subject,
        "severity": event.severity,
        "title": event.title,
        "since": event.since.isoformat(),
        "over_at": event.over_at.isoformat() if isinstance(event, AlertOver) else None,
        "database": event.database,
        "host": socket.gethostname(),
    }


def post(sender: str, signal: Signal, **values: Any) -> None:
    """Post an alert, in at most three attempts. Log a failure."""
    address = settings.alerts_webhook
    if address is None:
        return
    name, kind = ("alert_raised", AlertRaised) if signal is signals.alert_raised else ("alert_over", AlertOver)
    body = json.dumps(payload(name, kind(rule=sender, **values))).encode()
    for pause in (*WEBHOOK_PAUSES, None):
        problem = _post_once(address, body)
        if not problem:
            return
        if pause is not None:
            time.sleep(pause)
    webhook_failed(urlsplit(address).hostname or "", problem)


def _post_once(address: str, body: bytes) -> str:
    """Send the request once. Return why the server did not accept the alert; empty if the server did."""
    headers = {"Content-Type": "application/json", "User-Agent": "django-skipqueue"}
    request = Request(address, data=body, headers=headers, method="POST")  # noqa: S310 (`conf` allows http and https)
    try:
        with OPENER.open(request, timeout=WEBHOOK_TIMEOUT):
            return ""
    except (OSError, HTTPException, ValueError) as error:  # the error's text may contain the URL, so it is not used
        status = getattr(error, "code", None)
        return f"HTTP status {status}" if status else type(getattr(error, "reason", error)).__name__

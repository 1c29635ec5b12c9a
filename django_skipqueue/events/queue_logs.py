"""The log lines about queues, in the format of `logs`: the event first, then `key=value`."""

import logging
from datetime import datetime

from ..values.rates import rate_text
from .logs import write


def queue_paused(queue_name: str, until: datetime | None, by: str, reason: str) -> None:
    named = {"until": until and until.isoformat(" ", "seconds"), "by": by, "reason": reason}
    shown = {"queue": queue_name, **{name: value for name, value in named.items() if value}}
    write(logging.WARNING, "queue_paused", shown, extra={"queue_name": queue_name})


def queue_resumed(queue_name: str, by: str) -> None:
    shown = {"queue": queue_name, **({"by": by} if by else {})}
    write(logging.INFO, "queue_resumed", shown, extra={"queue_name": queue_name})


def queue_limited(queue_name: str, concurrency: int | None, by: str) -> None:
    number = "settings" if concurrency is None else concurrency or "none"
    shown = {"queue": queue_name, "concurrency": number, **({"by": by} if by else {})}
    write(logging.WARNING, "queue_limited", shown, extra={"queue_name": queue_name})


def queue_rated(queue_name: str, interval: float | None, by: str) -> None:
    rate = "settings" if interval is None else rate_text(interval) if interval else "none"
    shown = {"queue": queue_name, "rate": rate, **({"by": by} if by else {})}
    write(logging.WARNING, "queue_rated", shown, extra={"queue_name": queue_name})

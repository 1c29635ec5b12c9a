"""The event of the rates of queues, and its log line.

A log line has the format of `events.logs`: the event first, then `key=value`.
"""

import logging
from dataclasses import dataclass

from ...events.events import Event
from ...events.log_sink import Lines
from ...events.logs import write
from ...values.rates import rate_text


@dataclass(frozen=True)
class QueueRated(Event):
    database: str
    queue_name: str
    interval: float | None
    """Seconds for each job; 0: any number; `None`: as the settings say."""
    by: str


def queue_rated(queue_name: str, interval: float | None, by: str) -> None:
    rate = "settings" if interval is None else rate_text(interval) if interval else "none"
    shown = {"queue": queue_name, "rate": rate, **({"by": by} if by else {})}
    write(logging.WARNING, "queue_rated", shown, extra={"queue_name": queue_name})


LINES: Lines = {QueueRated: (logging.WARNING, lambda event: queue_rated(event.queue_name, event.interval, event.by))}

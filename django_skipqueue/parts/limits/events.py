"""The event of the limits of queues, and its log line.

A log line has the format of `events.logs`: the event first, then `key=value`.
"""

import logging
from dataclasses import dataclass

from ...events.events import Event
from ...events.log_sink import Lines
from ...events.logs import write


@dataclass(frozen=True)
class QueueLimited(Event):
    database: str
    queue_name: str
    concurrency: int | None
    """The new limit; 0: any number; `None`: the limit of the settings."""
    by: str


def queue_limited(queue_name: str, concurrency: int | None, by: str) -> None:
    number = "settings" if concurrency is None else concurrency or "none"
    shown = {"queue": queue_name, "concurrency": number, **({"by": by} if by else {})}
    write(logging.WARNING, "queue_limited", shown, extra={"queue_name": queue_name})


LINES: Lines = {
    QueueLimited: (logging.WARNING, lambda event: queue_limited(event.queue_name, event.concurrency, event.by))
}

"""The event of the rates of queues, and its log line."""

import logging
from dataclasses import dataclass

from ...events import logs
from ...events.events import Event
from ...values.settings import rate_text


@dataclass(frozen=True)
class QueueRated(Event):
    level = logging.WARNING

    database: str
    queue_name: str
    interval: float | None
    """Seconds for each job; 0: any number; `None`: as the settings say."""
    by: str

    def write_lines(self) -> None:
        rate = "settings" if self.interval is None else rate_text(self.interval) if self.interval else "none"
        logs.write_about_queue("queue_rated", self.queue_name, rate=rate, by=self.by)

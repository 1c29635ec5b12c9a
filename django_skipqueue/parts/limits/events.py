"""The event of the limits of queues, and its log line."""

import logging
from dataclasses import dataclass

from ...events import logs
from ...events.events import Event


@dataclass(frozen=True)
class QueueLimited(Event):
    level = logging.WARNING

    database: str
    queue_name: str
    concurrency: int | None
    """The new limit; 0: any number; `None`: the limit of the settings."""
    by: str

    def write_lines(self) -> None:
        number = "settings" if self.concurrency is None else self.concurrency or "none"
        logs.write_about_queue("queue_limited", self.queue_name, concurrency=number, by=self.by)

"""Writes roll-ups of the past, as workers and supervisors would have written them."""

import time
from datetime import UTC, datetime
from typing import Any

from django_skipqueue.models import RollUp
from django_skipqueue.parts.history import rollups
from django_skipqueue.parts.history.rollups import AttemptCounts, rows_of_counts

from ...app.rows import DEFAULT

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


def record_attempts(
    task: str = "shop.jobs.send", queue_name: str = "default", *, ago: float = 0.0, **counts: Any
) -> None:
    """Write attempts of this task into the roll-ups, `ago` seconds ago: `completed=5, retried=1`."""
    minute = int((time.time() - ago) // MINUTE)
    rollups.roll_up(DEFAULT, list(rows_of_counts({(minute, queue_name, task): AttemptCounts(**counts)})), [])


def write_depth(depth: int, queue_name: str = "default", *, ago: float = 0.0, oldest: float = 0.0) -> None:
    """Write the depth of a queue, and of all queues together, into the minute and the hour `ago` seconds ago."""
    at = time.time() - ago
    for span in (60, 3600):
        starts_at = datetime.fromtimestamp(at // span * span, UTC)
        for name in ("", queue_name):
            key = {"span": span, "queue_name": name, "task": "", "starts_at": starts_at}
            rows = RollUp.objects.filter(**key)
            if not rows.update(depth=depth, oldest_seconds=oldest):
                RollUp.objects.create(**key, depth=depth, oldest_seconds=oldest)

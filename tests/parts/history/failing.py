"""Writes failed and ended attempts into the roll-ups."""

import time

from django_skipqueue.parts.history import rollups
from django_skipqueue.parts.history.rollups import AttemptCounts, FailedAttempts, rows_of_counts, rows_of_failures
from django_skipqueue.values.records import Cause

from ...app.rows import DEFAULT

ONE_COMPLETED_ATTEMPT = AttemptCounts(completed=1)


def record_failures(
    cause: Cause, number: int = 1, *, seconds_ago: float = 0.0, line: int | None = 42, job_id: int = 7
) -> None:
    """Write failed attempts into the roll-ups, as a worker does."""
    at = time.time() - seconds_ago
    attempts = {(int(at // 60), cause): FailedAttempts(number, at, at, line, job_id)}
    rollups.roll_up(DEFAULT, [], list(rows_of_failures(attempts)))


def record_ended_attempts(
    task: str, counts: AttemptCounts = ONE_COMPLETED_ATTEMPT, *, seconds_ago: float = 0.0, queue_name: str = "default"
) -> None:
    """Write ended attempts of this task into the roll-ups, as a worker does; without counts, one completed attempt."""
    attempts = {(int((time.time() - seconds_ago) // 60), queue_name, task): counts}
    rollups.roll_up(DEFAULT, list(rows_of_counts(attempts)), [])

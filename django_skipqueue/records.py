"""What travels between the rooms: plain values, made once, never changed."""

from datetime import datetime
from typing import NamedTuple

from .outcomes import Outcome, Settlement

Lease = tuple[int, int]
"""A job's id, and the number that entitles to settle it."""


class Call(NamedTuple):
    """The arguments of one job, as JSON, and its unique key."""

    args: str
    kwargs: str
    unique_key: str | None


class ClaimedJob(NamedTuple):
    """A claimed row, cut down to what running it needs. Times are seconds since the epoch, by the database's clock."""

    id: int
    lease: int
    task: str
    queue_name: str
    args: str
    """A JSON list, not yet decoded."""
    kwargs: str
    """A JSON object, not yet decoded."""
    attempt: int
    max_attempts: int
    priority: int
    run_after: float
    locked_at: float
    metadata: str
    """A JSON object, not yet decoded."""

    @property
    def wait_ms(self) -> float:
        """How long the job was due before it was claimed, in milliseconds."""
        return (self.locked_at - self.run_after) * 1000


class Attempt(NamedTuple):
    """One run of a job, and what it came to."""

    job: ClaimedJob
    outcome: Outcome
    duration_ms: float
    worker: str
    """The name of the worker that ran it."""
    is_written: bool = False
    """Whether the outcome is in the row already: the task's own transaction wrote it."""

    @property
    def settlement(self) -> Settlement:
        """The outcome with the right to write it."""
        return Settlement(self.job.id, self.job.lease, self.outcome)


class RecoveredJob(NamedTuple):
    """A job taken back from a worker that is gone."""

    id: int
    task: str
    queue_name: str
    attempt: int
    status: str
    """What it is now: queued; scheduled after a second death in a row; failed after a third, or its last attempt."""
    locked_by: str
    locked_at: datetime
    metadata: str
    """A JSON object, not yet decoded."""

"""What travels between the rooms: plain values, made once, never changed."""

import math
import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from .outcomes import Outcome, Settlement

_WORKER_ID = re.compile("(.*):[0-9a-f]{12}", re.DOTALL)


def worker_name(worker_id: str) -> str:
    """The name in the id of a worker process, which is `NAME:12 hex digits`; another text as it is."""
    match = _WORKER_ID.fullmatch(worker_id)
    return match[1] if match else worker_id


LeaseRef = tuple[int, int]
"""The id of a job and a lease of it: the right to settle that job. A plain tuple: one is made for every attempt."""


class JobColumns(TypedDict, total=False):
    """The columns that a caller of `Job.objects.enqueue` may set. `JobSpec` explains them."""

    queue_name: str
    priority: int
    max_attempts: int | None
    run_after: datetime | timedelta | None
    timeout: float | None


class JobSpec(NamedTuple):
    """What all jobs of one `enqueue` or `enqueue_many` have in common. Each field is the column of its name."""

    task: str
    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    """`None`: what `SKIPQUEUE["MAX_ATTEMPTS"]` says."""
    run_after: datetime | timedelta | None = None
    """A timedelta counts from now, by the database's clock; `None`: now."""
    timeout: float | None = None
    """Seconds that an attempt may take; `None`: what the task says when it runs."""
    retention: str | None = None
    """A JSON object: the seconds for which the job is kept once it is finished, by status, where that is shorter than
    what `SKIPQUEUE["RETENTION"]` says."""
    metadata: str = "{}"
    """A JSON object of the caller's. `backend` and `deferred` in it are those of Django's tasks."""

    def insert_values(self) -> dict[str, Any]:
        """The values that the INSERTs read. A `run_after` that is a timedelta becomes `delay`, in seconds from now."""
        is_delay = isinstance(self.run_after, timedelta)
        return {
            **self._asdict(),
            "run_after": None if is_delay else self.run_after,
            "delay": self.run_after.total_seconds() if isinstance(self.run_after, timedelta) else 0.0,
        }


class InsertedJob(NamedTuple):
    """What the database decided of a row that it has inserted."""

    id: int
    status: str
    run_after: datetime
    enqueued_at: datetime


class EncodedCall(NamedTuple):
    """The arguments of one job, as JSON, and its unique key."""

    args: str
    kwargs: str
    unique_key: str | None


class QueuePosition(NamedTuple):
    """Where a job stands in its queue. Positions compare as the claim index does."""

    rank: int
    """The negated priority."""
    run_after: float
    """In seconds since the epoch."""
    id: int


QUEUE_HEAD = QueuePosition(-101, -math.inf, 0)
"""Before every job: priorities end at 100."""


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
    timeout: float | None = None
    """Seconds that an attempt may take; `None`: what the task says."""
    unknown_since: float | None = None
    """When a worker first found that it does not know the task; `None`: none has, or an attempt has ended since."""
    claim_seconds: float = 0.0
    """Seconds from the start of the claim's statement until this row was updated."""
    claimed_at: float | None = None
    """When its claim was sent, in monotonic seconds of the process that claimed it."""

    @property
    def ref(self) -> LeaseRef:
        """The lease under which the job was claimed."""
        return self.id, self.lease

    @property
    def position(self) -> QueuePosition:
        """Where the job stood in its queue."""
        return QueuePosition(-self.priority, self.run_after, self.id)

    @property
    def wait_ms(self) -> float:
        """How long the job was due before it was claimed, in milliseconds."""
        return (self.locked_at - self.run_after) * 1000

    def waited_ms(self, started: float) -> float:
        """Milliseconds from when it was due until `started`, a monotonic time of the process that claimed it."""
        held = 0.0 if self.claimed_at is None else started - self.claimed_at
        return self.wait_ms + held * 1000


class Attempt(NamedTuple):
    """One run of a job, and what it came to."""

    job: ClaimedJob
    outcome: Outcome
    started: float
    """When it began, in monotonic seconds of the process that ran it."""
    ended: float
    worker: str
    """The name of the worker that ran it."""
    is_written: bool = False
    """Whether the outcome is in the row already: the task's own transaction wrote it."""

    @property
    def settlement(self) -> Settlement:
        """The outcome with the right to write it."""
        return Settlement(self.job.id, self.job.lease, self.outcome, self.started, self.ended)

    @property
    def duration_ms(self) -> float:
        """How long the task ran, in milliseconds."""
        return (self.ended - self.started) * 1000

    @property
    def wait_ms(self) -> float:
        """How long the job was due before the task began, in milliseconds."""
        return self.job.waited_ms(self.started)


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

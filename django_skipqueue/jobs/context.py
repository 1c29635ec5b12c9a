"""`JobContext`, the first argument of a task with `takes_context=True`. It describes the attempt and its job."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from ..events.log_format import job_name
from ..exceptions import CannotComplete, LeaseLost
from ..parts.batches.batch import BatchContext
from ..parts.steps.context import StepsContext
from ..queue.store import Store
from ..values.notes import checked_progress, checked_text, level_name
from ..values.outcomes import COMPLETED, Outcome, Settlement
from ..values.part import PartOfAttempt
from ..values.records import ClaimedJob
from .registry import registry

if TYPE_CHECKING:
    from ..models import Job


class Notes(Protocol):
    """Collects the progress and the log lines that a task writes with its `JobContext`. Its methods never wait."""

    def note_progress(self, value: float, text: str) -> None:
        """Replace the progress."""

    def note_line(self, level: str, logger: str, text: str) -> None:
        """Add a log line."""


class AttemptHandle(Protocol):
    """The attributes of a running attempt that `JobContext` needs."""

    job: ClaimedJob
    worker: str
    database: str
    started: float
    completed: Outcome | None
    """The outcome that the task itself has committed."""
    parts: "tuple[PartOfAttempt, ...]"
    """What parts keep about this attempt; empty for most attempts."""

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, so that the attempt should end soon."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt was interrupted because its worker no longer holds the job."""

    def notes(self) -> "Notes":
        """The object that collects the progress and the log lines of the attempt."""

    def with_notes(self, outcome: Outcome) -> Outcome:
        """Return a copy of the outcome with the progress and the log lines of the attempt."""

    def require_in_time(self) -> None:
        """Raise if the attempt was interrupted. Called in the transaction in which a task completes its job."""

    def note_completed(self, outcome: Outcome) -> None:
        """Record that the task has completed its own job. Called after the task's transaction is committed."""


current_attempt: ContextVar[AttemptHandle | None] = ContextVar("skipqueue_attempt", default=None)
"""The attempt that runs in this thread or coroutine. The executor sets it."""


@dataclass(frozen=True)
class JobContext(
    BatchContext,
    StepsContext,
):
    """The first argument of a task with `takes_context=True`. Only the first use of `job` sends a query."""

    job_id: int
    attempt: int
    """The number of this run of the job: 1, 2, …"""
    max_attempts: int
    queue_name: str
    worker: str
    """The name of the worker process."""
    database: str
    """The alias of the database that holds the job."""
    lease: int = 0
    started: float | None = None
    """When the attempt started, by this process's monotonic clock."""
    is_atomic: bool = False
    """Whether the task has `@job(atomic=True)`, so that it shares a transaction with its outcome."""
    running: AttemptHandle | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, running: AttemptHandle, is_atomic: bool) -> "JobContext":
        """Make the context of a running attempt."""
        job = running.job
        return cls(
            job_id=job.id,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            queue_name=job.queue_name,
            worker=running.worker,
            database=running.database,
            lease=job.lease,
            started=running.started,
            is_atomic=is_atomic,
            running=running,
        )

    @classmethod
    def current(cls) -> "JobContext | None":
        """The context of the attempt that runs in this thread or coroutine; `None` outside of attempts.

        For code that tasks call, and for tasks of `django.tasks`. In a thread started by a task it returns `None`.
        """
        running = current_attempt.get()
        return None if running is None else cls.of(running, registry.get(running.job.task).atomic)

    @cached_property
    def job(self) -> "Job":
        """The job, as its row was at the first use of this property."""
        from ..models import Job

        return Job.objects.using(self.database).get(pk=self.job_id)

    async def aget_job(self) -> "Job":
        """`job` for an `async def` task."""
        return await sync_to_async(lambda: self.job)()

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job fails for good if this attempt fails."""
        return (self.attempt if self.running is None else self.running.job.attempt) >= self.max_attempts

    @property
    def stopping(self) -> bool:
        """Whether the worker stops. After `SHUTDOWN_TIMEOUT` it releases the job, and the attempt is lost."""
        return self.running is not None and self.running.is_stopping

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or taken from its worker since the attempt began. Its outcome is not written.

        Becomes true about a second after the cancellation. For code that catches `JobCancelled`, and for threads that
        the task starts.
        """
        return self.running is not None and self.running.is_cancelled

    def progress(self, value: float, text: str = "") -> None:
        """Note how much is done, as a number from 0 to 1 with a short text: `progress(0.4, "40 of 100")`.

        Returns at once. The worker writes the last value about once a second, also while the task is in a transaction,
        and again with the outcome. Raises `InvalidOption` for a value that is not from 0 to 1. May be called from any
        thread, and from an `async def` task. If no worker runs the job, only checks the values.
        """
        checked = checked_progress(value), checked_text("text", text)
        if self.running is not None:
            self.running.notes().note_progress(*checked)

    def log(self, message: str, level: int | str = "INFO") -> None:
        """Add a line to the log that is stored with the attempt, whatever the setting `CAPTURE_LOGS` is.

        Returns at once, and writes to no other log. The last 500 lines are kept. Raises `InvalidOption` for a message
        that is not a str, and for a level that `logging` does not have.
        """
        line = level_name(level), "", checked_text("message", message)
        if self.running is not None:
            self.running.notes().note_line(*line)

    def complete(self, result: Any = None) -> None:
        """Finish the job with `result` in the task's current transaction: both are committed, or neither is.

        Raises `CannotComplete` outside of `transaction.atomic()` on the queue's database, and in a task with
        `atomic=True`; `InvalidArguments` for a result that is not JSON; and `LeaseLost` if this worker no longer holds
        the job. Do not catch `LeaseLost`, so that the transaction is rolled back. After the commit, the outcome no
        longer changes, whatever the task returns or raises.
        """
        if self.running is None:
            raise CannotComplete("No worker runs this job, so there is nothing to complete.")
        if self.is_atomic:
            raise CannotComplete("The task is atomic: its job is completed with what it returns.")
        if not connections[self.database].in_atomic_block:
            raise CannotComplete(
                f"complete() must share a transaction: call it within transaction.atomic(using={self.database!r})."
            )
        outcome = COMPLETED
        if result is not None:
            outcome = Outcome("completed", result=registry.get(self.running.job.task).encoded_result(result))
        outcome = self.running.with_notes(outcome)
        complete(self.database, Settlement(self.job_id, self.lease, outcome, self.started), self.running)


def complete(database: str, settlement: Settlement, running: AttemptHandle) -> None:
    """Write the outcome in the open transaction. After the commit, tell the attempt that its job is completed.

    The on-commit hook for this is moved to the front, because Django calls no further hooks after a hook that raises.
    """
    if not Store(database).settle([settlement], raises=True):
        problem = f"Job {job_name(database, settlement.job_id)} is no longer held by lease {settlement.lease}"
        raise LeaseLost(f"{problem}; what its task wrote is rolled back.")
    running.require_in_time()
    transaction.on_commit(_Completion(running.note_completed, settlement.outcome), using=database)
    hooks = connections[database].run_on_commit
    hooks.insert(0, hooks.pop())


class _Completion(partial[None]):
    """The on-commit hook that tells an attempt that its job is completed."""


def is_completion(hook: object) -> bool:
    """Whether an on-commit hook is the hook that tells an attempt that its job is completed."""
    return isinstance(hook, _Completion)

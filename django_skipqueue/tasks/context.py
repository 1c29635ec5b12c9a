"""What a task with `takes_context=True` learns about its run, and how it may complete its job by itself."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from ..exceptions import CannotComplete, LeaseLost
from ..store import Store
from ..values.codec import encode
from ..values.outcomes import COMPLETED, Outcome, Settlement

if TYPE_CHECKING:
    from ..models import Job


class Running(Protocol):
    """The attempt that a context belongs to, as far as a task has to do with it."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt was interrupted because its job is no longer the worker's."""

    def require_in_time(self) -> None:
        """Called in the transaction in which a task completes its job; raises if the attempt was interrupted."""

    def note_completed(self, outcome: Outcome) -> None:
        """Called once that transaction is committed."""


@dataclass(frozen=True)
class JobContext:
    """The first argument of a task that asked for it. Only `job` costs a query, once, and only when used."""

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
    """When the attempt began, in monotonic seconds."""
    is_atomic: bool = False
    """Whether the task runs in one transaction with its outcome: `@job(atomic=True)`."""
    running: Running | None = field(default=None, repr=False, compare=False)

    @cached_property
    def job(self) -> "Job":
        """The job's row, as it was when it was first asked for."""
        from ..models import Job

        return Job.objects.using(self.database).get(pk=self.job_id)

    async def aget_job(self) -> "Job":
        """The same for an `async def` task."""
        return await sync_to_async(lambda: self.job)()

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job fails for good if this run fails."""
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or taken from its worker, since the attempt began: what it does is in vain.

        Known within a second. For code that catches `JobCancelled`, and for threads that the task has started.
        """
        return self.running is not None and self.running.is_cancelled

    def complete(self, result: Any = None) -> None:
        """Finish the job with `result` in the transaction that the task is in: both are committed, or neither is.

        Raises `CannotComplete` outside of `transaction.atomic()` on the queue's database and in a task that is
        `atomic` anyway, `InvalidArguments` for a result that is not JSON, and `LeaseLost` if the job is no longer this
        worker's: let that roll the transaction back. What the task returns or raises after the commit changes nothing.
        """
        if self.running is None:
            raise CannotComplete("No worker runs this job, so there is nothing to complete.")
        if self.is_atomic:
            raise CannotComplete("The task is atomic: its job is completed with what it returns.")
        if not connections[self.database].in_atomic_block:
            raise CannotComplete(
                f"complete() must share a transaction: call it within transaction.atomic(using={self.database!r})."
            )
        outcome = COMPLETED if result is None else Outcome("completed", result=encode("The result", result))
        complete(self.database, Settlement(self.job_id, self.lease, outcome, self.started), self.running)


def complete(database: str, settlement: Settlement, running: Running) -> None:
    """Write the outcome in the transaction that is open; the attempt notes it after the commit, before any other hook.

    Before any other: one that raises keeps those after it from being called.
    """
    if not Store(database).settle([settlement], raises=True):
        held = f"Job {settlement.job_id} is no longer held by lease {settlement.lease}"
        raise LeaseLost(f"{held}; what its task wrote is rolled back.")
    running.require_in_time()
    transaction.on_commit(_Completion(running.note_completed, settlement.outcome), using=database)
    hooks = connections[database].run_on_commit
    hooks.insert(0, hooks.pop())


class _Completion(partial[None]):
    """The hook by which an attempt notes that its job is completed."""


def is_completion(hook: object) -> bool:
    """Whether this hook of a transaction notes that the completion of a job is committed."""
    return isinstance(hook, _Completion)

"""Runs a claimed job here, in the caller's thread: for loops written by hand, and for tests.

Invariant: whatever the task is (`async def`, atomic) and does (raise, return what is not JSON), its job is settled as
`runworker` would settle it, or `LeaseLost` says that it is somebody else's.
"""

from asgiref.sync import async_to_sync

from .exceptions import LeaseLost, UnknownTask
from .execution.executor import Executor
from .execution.running_attempt import RunningAttempt
from .models import Job, Status
from .store import Store
from .tasks.registry import registry
from .values.codec import encode
from .values.records import Attempt, ClaimedJob


def run(job: Job) -> Attempt:
    """Run a job that `Job.objects.claim` returned, and write what it comes to; the attempt.

    Nobody interrupts it: neither its task's `timeout` nor a cancel. Sends `job_started`, and no other signal. Raises
    `LeaseLost`, and has written nothing, if the job was recovered, cancelled or settled meanwhile; and
    `KeyboardInterrupt`, with the attempt recorded as failed, if that is what the task raised.
    """
    if job.status != Status.RUNNING or job.locked_at is None:
        raise LeaseLost(f"Job {job.pk} is {job.status}: only a job that was claimed can be run.")
    database = job._state.db or Job.objects.db
    attempt = run_attempt(Executor(worker=job.worker_name, database=database), _as_claimed(job))
    if not attempt.is_written and not Store(database).settle([attempt.settlement]):
        raise LeaseLost(f"Job {job.pk} is no longer held by lease {job.lease}: what it came to was not written.")
    job.status = Status(attempt.outcome.next_status)
    if isinstance(attempt.outcome.exception, KeyboardInterrupt):
        raise attempt.outcome.exception
    return attempt


def run_attempt(executor: Executor, job: ClaimedJob) -> Attempt:
    """Run the task of a claimed job, of whichever kind it is."""
    return (async_to_sync(executor.execute_async) if _is_async(job) else executor.execute)(RunningAttempt(job))


def _is_async(job: ClaimedJob) -> bool:
    try:
        return registry.get(job.task).is_async
    except UnknownTask:
        return False  # the executor says what becomes of it


def _as_claimed(job: Job) -> ClaimedJob:
    assert job.locked_at is not None  # noqa: S101 (for the type checker: `run` has looked)
    return ClaimedJob(
        id=job.pk,
        lease=job.lease,
        task=job.task,
        queue_name=job.queue_name,
        args=encode("args", job.args),
        kwargs=encode("kwargs", job.kwargs),
        attempt=job.attempts,
        max_attempts=job.max_attempts,
        priority=job.priority,
        run_after=job.run_after.timestamp(),
        locked_at=job.locked_at.timestamp(),
        metadata=encode("metadata", job.metadata),
        timeout=job.timeout,
        unknown_since=job.unknown_since.timestamp() if job.unknown_since else None,
    )

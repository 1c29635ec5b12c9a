"""Run a claimed job in the caller's thread, for tests, and for projects that claim jobs in their own loop.

Whatever the task does, `run` writes the job's outcome as `runworker` does, or raises `LeaseLost`.
"""

from asgiref.sync import async_to_sync

from ..exceptions import LeaseLost, UnknownTask
from ..jobs.registry import registry
from ..models import Job, Status
from ..queue.store import Store
from ..values.codec import encode
from ..values.records import Attempt, ClaimedJob
from .attempts.executor import Executor
from .attempts.running_attempt import RunningAttempt


def run(job: Job) -> Attempt:
    """Run a job that `Job.objects.claim` returned, and write its outcome. Returns the attempt.

    The task is not interrupted at its `timeout` or by a cancel. `job_started` is the only signal that is sent. Raises
    `LeaseLost`, and writes nothing, if the job was recovered, cancelled or settled since its claim. If the task raises
    `KeyboardInterrupt`, records a failed attempt, and raises it again.
    """
    if job.status != Status.RUNNING or job.locked_at is None:
        raise LeaseLost(f"Job {job.shown_id} is {job.status}: only a job that was claimed can be run.")
    database = job._state.db or Job.objects.db
    attempt = run_attempt(Executor(worker=job.worker_name, database=database), _as_claimed(job))
    if not attempt.is_written and not Store(database).settle([attempt.settlement]):
        raise LeaseLost(f"Job {job.shown_id} is no longer held by lease {job.lease}: its outcome was not written.")
    job.status = Status(attempt.outcome.next_status)
    if isinstance(attempt.outcome.exception, KeyboardInterrupt):
        raise attempt.outcome.exception
    return attempt


def run_attempt(executor: Executor, job: ClaimedJob) -> Attempt:
    """Run the task of a claimed job, which may be `def` or `async def`."""
    try:
        is_async = registry.get(job.task).is_async
    except UnknownTask:
        is_async = False  # the executor decides the outcome of an unknown task
    run_task = async_to_sync(executor.execute_async) if is_async else executor.execute
    return run_task(RunningAttempt(job))


def _as_claimed(job: Job) -> ClaimedJob:
    assert job.locked_at is not None  # noqa: S101 (for the type checker: `run` checks it)
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

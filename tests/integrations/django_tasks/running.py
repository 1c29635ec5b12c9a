"""Claims, runs and settles a job in the process of the test, as a worker does."""

from asgiref.sync import async_to_sync

from django_skipqueue.events.sinks import send
from django_skipqueue.integrations.django_tasks.definition import entry
from django_skipqueue.queue.store import Store
from django_skipqueue.values.records import Attempt, ClaimedJob
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt
from django_skipqueue.worker.outcomes import EVENTS

WORKER = "00000000-0000-0000-0000-000000000001"
"""The id of the worker that claims the jobs. Its name is "w"."""


def claim(queue_name: str = "default", *, database: str = "default", worker_id: str = WORKER) -> ClaimedJob:
    """Claim the next job of the queue."""
    (job,) = Store(database).claim(queue_names=[queue_name], limit=1, worker_id=worker_id)
    return job


def execute(job: ClaimedJob, *, database: str = "default") -> Attempt:
    """Run a claimed job, and write nothing to its row."""
    executor = Executor(worker="w", database=database)
    registered_task = entry(job.task)
    run = async_to_sync(executor.execute_async) if registered_task and registered_task.is_async else executor.execute
    return run(RunningAttempt(job))


def finish(attempt: Attempt, *, database: str = "default") -> None:
    """Write the outcome, and send its event."""
    assert Store(database).settle([attempt.settlement])
    report(attempt)


def report(attempt: Attempt) -> None:
    """Send the event of the attempt, as a worker's dispatcher does."""
    send(EVENTS[attempt.outcome.status]([attempt]))


def run_next(queue_name: str = "default", *, database: str = "default", worker_id: str = WORKER) -> Attempt:
    """Claim, run and settle the next job of the queue."""
    attempt = execute(claim(queue_name, database=database, worker_id=worker_id), database=database)
    finish(attempt, database=database)
    return attempt

"""Sends Django's `task_finished` after the outcome of a finished job is committed.

Invariant: the signal is sent once for each finished job: neither for an attempt that will be retried, nor for one whose
lease was lost. It is sent in the thread of the `EventDispatcher`, so that a slow receiver delays no job.
"""

import logging
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from ...exceptions import RecordedError
from ...signals import dependant_discarded, job_cancelled, job_completed, job_discarded, job_failed, job_recovered
from ...values.codec import decode
from ...values.records import LEFT_OUT, Attempt, Dependant, RecoveredJob
from .definition import definition_of, entry
from .framework import AnyResult, TaskResultStatus, has_listeners, log_task_finished, sender_for, task_finished
from .mapping import ALIAS, result_of, task_status

if TYPE_CHECKING:
    from ...models import Job
    from ...models.managers import JobQuerySet


def connect() -> None:
    """Connect the receivers to the queue's signals. May be called more than once."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, dispatch_uid=__name__)


def disconnect() -> None:
    """Disconnect the receivers; for tests."""
    for signal, _ in RECEIVERS:
        signal.disconnect(dispatch_uid=__name__)


def _ended(attempt: Attempt, **_: Any) -> None:
    job, outcome = attempt.job, attempt.outcome
    task = entry(job.task)
    if task is None or not _has_listeners(outcome.status):
        return
    if job.args != LEFT_OUT:
        _send(task.result(job, status=outcome.status, database=attempt.database), outcome.error)
    elif row := _row(attempt):
        _send(result_of(row, task.definition), outcome.error)


def _row(attempt: Attempt) -> "Job | None":
    """The row of the attempt's job: it has the arguments. `None` if somebody has deleted it, or has retried it."""
    from ...models import Job

    return Job.objects.using(attempt.database).filter(pk=attempt.job.id, status=attempt.outcome.status).first()


def _recovered(job: RecoveredJob, database: str, **_: Any) -> None:
    """Send the signal if the recovered job has failed: its worker died in the last attempt."""
    from ...models import Job

    if job.status == "failed" and decode(job.metadata).get(ALIAS) is not None and _has_listeners(job.status):
        _send_of_row(Job.objects.using(database).failed(), job.id)


def _dependant_discarded(job: Dependant, database: str, **_: Any) -> None:
    """Send the signal for a job that was discarded because one that it needs has not completed."""
    from ...models import Job

    if decode(job.metadata).get(ALIAS) is not None and _has_listeners(job.status):
        _send_of_row(Job.objects.using(database).discarded(), job.id)


def _send_of_row(jobs: "JobQuerySet", job_id: int) -> None:
    """Send the signal for a job that has ended without an attempt, unless somebody has retried or deleted it."""
    row = jobs.filter(pk=job_id).first()
    task = row and definition_of(row)
    if row and task:
        _send(result_of(row, task), row.errors[-1] if row.errors else None)


def _has_listeners(status: str) -> bool:
    level = logging.INFO if task_status(status) == TaskResultStatus.SUCCESSFUL else logging.ERROR
    return has_listeners(task_finished, log_receiver=log_task_finished, level=level)


def _send(result: AnyResult, error: dict[str, Any] | None) -> None:
    """Send the signal while the error is being handled: receivers read `sys.exc_info()`, as Django's own does."""
    sender = sender_for(result.backend)
    if error is None:
        task_finished.send_robust(sender, task_result=result)
        return
    try:
        raise RecordedError(error["traceback"] or f"{error['exception']}: {error['message']}")
    except RecordedError as recorded:
        recorded.__traceback__ = None  # the recorded traceback is in its text
        task_finished.send_robust(sender, task_result=result)


RECEIVERS: tuple[tuple[Signal, Any], ...] = (
    (job_completed, _ended),
    (job_failed, _ended),
    (job_discarded, _ended),
    (job_cancelled, _ended),
    (job_recovered, _recovered),
    (dependant_discarded, _dependant_discarded),
)

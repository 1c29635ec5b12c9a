"""Sends Django's `task_finished` once a job has ended and its outcome is committed.

Invariant: it is sent for what stands in the row, and once: not for an attempt that will be retried, nor for one whose
lease was lost. In the thread that tells of events, so that a slow receiver holds up no job.
"""

import logging
from typing import Any

from django.dispatch import Signal

from ..exceptions import RecordedError
from ..signals import job_cancelled, job_completed, job_discarded, job_failed, job_recovered
from ..values.codec import decode
from ..values.records import Attempt, RecoveredJob
from .definition import definition_of, entry
from .framework import AnyResult, TaskResultStatus, hears, log_task_finished, sender_for, task_finished
from .mapping import ALIAS, result_of, task_status
from .options import options_for


def connect() -> None:
    """Listen to the events of the queue. Any number of times is once."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, dispatch_uid=__name__)


def disconnect() -> None:
    """Listen no more; for tests."""
    for signal, _ in RECEIVERS:
        signal.disconnect(dispatch_uid=__name__)


def _ended(attempt: Attempt, **_: Any) -> None:
    job, outcome = attempt.job, attempt.outcome
    task = entry(job.task)
    if task is not None and _hears(outcome.status):
        _send(task.result(job, status=outcome.status), outcome.error)


def _recovered(job: RecoveredJob, **_: Any) -> None:
    """A worker died in the last attempt of a job."""
    from ..models import Job

    alias = decode(job.metadata).get(ALIAS)
    if job.status != "failed" or alias is None or not _hears(job.status):
        return
    database = options_for(alias).database
    row = Job.objects.using(database).failed().filter(pk=job.id).first()
    task = row and definition_of(row)
    if row and task:
        _send(result_of(row, task), row.errors[-1])


def _hears(status: str) -> bool:
    level = logging.INFO if task_status(status) == TaskResultStatus.SUCCESSFUL else logging.ERROR
    return hears(task_finished, log_receiver=log_task_finished, level=level)


def _send(result: AnyResult, error: dict[str, Any] | None) -> None:
    """With the error as the exception being handled: receivers ask `sys.exc_info()` for it, as Django's own does."""
    sender = sender_for(result.backend)
    if error is None:
        task_finished.send_robust(sender, task_result=result)
        return
    try:
        raise RecordedError(error["traceback"] or f"{error['exception']}: {error['message']}")
    except RecordedError as recorded:
        recorded.__traceback__ = None  # the one that matters is in its text
        task_finished.send_robust(sender, task_result=result)


RECEIVERS: tuple[tuple[Signal, Any], ...] = (
    (job_completed, _ended),
    (job_failed, _ended),
    (job_discarded, _ended),
    (job_cancelled, _ended),
    (job_recovered, _recovered),
)

"""The log lines about batches and dependants, in the format of `logs`: the event first, then `key=value`."""

import logging

from ..values.batches import FinishedBatch
from ..values.records import Dependant
from .batch_events import BatchNotFinished, CallbackSkipped
from .log_format import in_a_line
from .logs import write


def batch_finished(batch: FinishedBatch) -> None:
    counts = {"completed": batch.completed, "failed": batch.failed, "discarded": batch.discarded}
    shown = {"batch": batch.id, **({"name": batch.name} if batch.name else {}), **counts}
    write(logging.INFO, "batch_finished", shown, extra={"batch_id": batch.id, **counts})


def batch_not_finished(event: BatchNotFinished) -> None:
    error = in_a_line(event.error) or type(event.error).__name__
    shown = {"batch": event.batch_id, "error": error}
    write(logging.ERROR, "batch_not_finished", shown, extra={"batch_id": event.batch_id})


def callback_skipped(event: CallbackSkipped) -> None:
    shown = {
        "batch": event.batch_id,
        "callback": event.callback,
        "task": event.task,
        "reason": "another job holds its unique key",
    }
    write(logging.WARNING, "callback_skipped", shown, extra={"batch_id": event.batch_id})


def dependant_discarded(job: Dependant) -> None:
    shown = {"task": job.task, "id": job.id, "needs": job.needs_job_id}
    extra = {"job_id": job.id, "task": job.task, "queue_name": job.queue_name}
    write(logging.WARNING, "dependant_discarded", shown, extra=extra)

"""The events of batches, and of jobs that wait for others, and their log lines.

A log line has the format of `events.logs`: the event first, then `key=value`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ... import signals
from ...events.events import Event
from ...events.log_format import in_a_line
from ...events.log_sink import Lines
from ...events.logs import write
from ...events.signal_sink import Sent, Signals
from ...values.records import Dependant
from .values import FinishedBatch


@dataclass(frozen=True)
class DependantsDiscarded(Event):
    """Jobs that waited for others were discarded, because one of those has not completed."""

    database: str
    """The alias of the database that holds them."""
    jobs: Sequence[Dependant]

    @property
    def size(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True)
class BatchesFinished(Event):
    database: str
    """The alias of the database that holds them."""
    batches: Sequence[FinishedBatch]

    @property
    def size(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class BatchNotFinished(Event):
    """The last job of a batch is finished, and its callbacks could not be enqueued. A supervisor tries again."""

    database: str
    """The alias of the database that holds it."""
    batch_id: int
    error: BaseException


@dataclass(frozen=True)
class CallbackSkipped(Event):
    """A callback of a finished batch was not enqueued, because another job holds its unique key."""

    database: str
    """The alias of the database that holds them."""
    batch_id: int
    callback: str
    """`on_success`, `on_failure` or `on_finish`."""
    task: str
    unique_key: str


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


def _finished(event: BatchesFinished) -> None:
    for batch in event.batches:
        batch_finished(batch)


def _discarded(event: DependantsDiscarded) -> None:
    for job in event.jobs:
        dependant_discarded(job)


def _sent_finished(event: BatchesFinished) -> Sent:
    for batch in event.batches:
        yield batch.name, {"database": event.database, "batch": batch}


def _sent_discarded(event: DependantsDiscarded) -> Sent:
    for job in event.jobs:
        yield job.task, {"database": event.database, "job": job}


LINES: Lines = {
    DependantsDiscarded: (logging.WARNING, _discarded),
    BatchesFinished: (logging.INFO, _finished),
    BatchNotFinished: (logging.ERROR, batch_not_finished),
    CallbackSkipped: (logging.WARNING, callback_skipped),
}

SIGNALS: Signals = {
    DependantsDiscarded: (signals.dependant_discarded, _sent_discarded),
    BatchesFinished: (signals.batch_finished, _sent_finished),
}

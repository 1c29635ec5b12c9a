"""The events about batches and about jobs that wait for other jobs, with their log lines."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ... import signals
from ...events.events import Event, SignalArguments
from ...events.log_format import in_a_line
from ...events.logs import write
from ...values.records import Dependant
from .values import FinishedBatch


@dataclass(frozen=True)
class DependantsDiscarded(Event):
    """Jobs were discarded because a job that they waited for did not complete."""

    level, signal = logging.WARNING, signals.dependant_discarded

    database: str
    jobs: Sequence[Dependant]

    @property
    def size(self) -> int:
        return len(self.jobs)

    def write_lines(self) -> None:
        for job in self.jobs:
            shown = {"task": job.task, "id": job.id, "needs": job.needs_job_id}
            extra = {"job_id": job.id, "task": job.task, "queue_name": job.queue_name}
            write(logging.WARNING, "dependant_discarded", shown, extra=extra)

    def signal_arguments(self) -> SignalArguments:
        for job in self.jobs:
            yield job.task, {"database": self.database, "job": job}


@dataclass(frozen=True)
class BatchesFinished(Event):
    level, signal = logging.INFO, signals.batch_finished

    database: str
    batches: Sequence[FinishedBatch]

    @property
    def size(self) -> int:
        return len(self.batches)

    def write_lines(self) -> None:
        for batch in self.batches:
            counts = {"completed": batch.completed, "failed": batch.failed, "discarded": batch.discarded}
            shown = {"batch": batch.id, **({"name": batch.name} if batch.name else {}), **counts}
            write(logging.INFO, "batch_finished", shown, extra={"batch_id": batch.id, **counts})

    def signal_arguments(self) -> SignalArguments:
        for batch in self.batches:
            yield batch.name, {"database": self.database, "batch": batch}


@dataclass(frozen=True)
class BatchNotFinished(Event):
    """The last job of a batch is finished, but its callbacks could not be enqueued. A supervisor will try again."""

    level = logging.ERROR

    database: str
    batch_id: int
    error: BaseException

    def write_lines(self) -> None:
        shown = {"batch": self.batch_id, "error": in_a_line(self.error) or type(self.error).__name__}
        write(logging.ERROR, "batch_not_finished", shown, extra={"batch_id": self.batch_id})


@dataclass(frozen=True)
class CallbackSkipped(Event):
    """A callback of a finished batch was not enqueued, because another job holds its unique key."""

    level = logging.WARNING

    database: str
    batch_id: int
    callback: str
    """`on_success`, `on_failure` or `on_finish`."""
    task: str
    unique_key: str

    def write_lines(self) -> None:
        reason = "another job holds its unique key"
        shown = {"batch": self.batch_id, "callback": self.callback, "task": self.task, "reason": reason}
        write(logging.WARNING, "callback_skipped", shown, extra={"batch_id": self.batch_id})

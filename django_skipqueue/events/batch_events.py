"""The events of batches, and of jobs that wait for others."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..values.batches import FinishedBatch
from ..values.records import Dependant
from .events import Event


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

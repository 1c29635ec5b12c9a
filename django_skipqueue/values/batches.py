"""Values about batches of jobs."""

from typing import NamedTuple


class FinishedBatch(NamedTuple):
    """A batch whose last job is finished."""

    id: int
    name: str
    parent_id: int | None
    callbacks: str
    """A JSON object, not yet decoded."""
    completed: int
    failed: int
    discarded: int
    is_failure: bool
    """Whether one of its jobs has not completed, or a callback of an inner batch."""


class BatchProgress(NamedTuple):
    """How far a batch is. The jobs of inner batches count, callbacks do not."""

    total: int
    done: int
    """How many jobs are finished, in whatever way."""
    completed: int
    failed: int
    discarded: int
    is_finished: bool
    """Whether the callbacks are enqueued."""

    @property
    def share(self) -> float:
        """The part that is done, from 0.0 to 1.0; that of an empty batch is 1.0."""
        return self.done / self.total if self.total else 1.0

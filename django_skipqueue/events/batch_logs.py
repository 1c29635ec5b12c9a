"""The log lines about batches, in the format of `logs`: the event first, then `key=value`."""

import logging

from ..values.batches import FinishedBatch
from .logs import write


def batch_finished(batch: FinishedBatch) -> None:
    """The last job of a batch is finished, and its callbacks are enqueued."""
    counts = {"completed": batch.completed, "failed": batch.failed, "discarded": batch.discarded}
    shown = {"batch": batch.id, **({"name": batch.name} if batch.name else {}), **counts}
    write(logging.INFO, "batch_finished", shown, extra={"batch_id": batch.id, **counts})

"""What the tests of batches say about rows."""

from typing import Any

from django_skipqueue.models import Job, JobBatch


def callbacks_of(name: str = "") -> list[tuple[str, Any]]:
    """The task and the arguments of each callback job, of the batches of this name."""
    ids = [id for batch in JobBatch.objects.filter(name=name) for id in batch.callback_ids or ()]
    return [(job.task.rpartition(".")[2], job.args) for job in Job.objects.filter(pk__in=ids).order_by("id")]


def counts_of(batch: JobBatch) -> tuple[int | None, int | None, int | None]:
    """How many jobs completed, failed, were discarded."""
    return batch.completed, batch.failed, batch.discarded

"""Tasks and helper functions of the tests of batches."""

from typing import Any

from django_skipqueue import JobContext, job
from django_skipqueue.models import Job, JobBatch

from ...app import jobs


def callbacks_of(name: str = "") -> list[tuple[str, Any]]:
    """The name of the task and the arguments of each callback job, for the batches with this name."""
    ids = [id for batch in JobBatch.objects.filter(name=name) for id in batch.callback_ids or ()]
    callback_jobs = Job.objects.filter(pk__in=ids).order_by("id")
    return [(job.task.rpartition(".")[2], job.args) for job in callback_jobs]


def counts_of(batch: JobBatch) -> tuple[int | None, int | None, int | None]:
    """The numbers of completed, failed and discarded jobs that the row of a batch has."""
    return batch.completed, batch.failed, batch.discarded


@job(takes_context=True)
def fan_out(context: JobContext, added: int) -> None:
    """Add jobs to the batch of the running job."""
    assert context.batch
    context.batch.add(*[jobs.add.s(term) for term in range(added)])


@job(takes_context=True)
def see_batch(context: JobContext, note: str = "") -> list[Any]:
    """Return the id of the job's batch, and the note."""
    return [context.batch and context.batch.id, note]


@job(takes_context=True)
def see_results(context: JobContext) -> list[Any]:
    """Return the results of the jobs that this job has waited for."""
    return context.results

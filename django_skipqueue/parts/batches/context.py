"""What a job knows of its batch, and of the jobs that it has waited for."""

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...events.log_format import job_name
from ...exceptions import ResultLost, UndecodableArguments, UnknownTask
from ...jobs.registry import registry
from ...queue.store import Store
from ...values.codec import decode
from .batch import Batch
from .dependencies import needs_of

if TYPE_CHECKING:
    from ...models import Job


class BatchContext:
    """Properties of `JobContext`."""

    job_id: int
    database: str
    if TYPE_CHECKING:

        @cached_property
        def job(self) -> Job:
            """The job."""

    @cached_property
    def batch(self) -> Batch | None:
        """The batch of the job, or the batch whose callback it is; `None` without one. The first use sends a query."""
        return Batch.of(self.job, database=self.database)

    @cached_property
    def results(self) -> list[Any]:
        """The results of the jobs that this one has waited for, in their order; `None` for one without a result.

        Each has the type of its task's annotation; it is as JSON has it if there is none, if it does not fit, or if
        this process does not have the task. Raises `ResultLost` if a job was deleted, or pruned, and `RowMissing` for a
        model instance whose row is gone. The first use sends a query, and one for each model instance.
        """
        found = []
        for need in needs_of(Store(self.database), self.job_id):
            if need.status is None or (need.status == "completed" and need.is_gone):
                lost, waited = (job_name(self.database, id) for id in (need.needs_job_id, self.job_id))
                raise ResultLost(f"Job {lost}, which job {waited} has waited for, is not there.")
            found.append(None if need.result is None else _typed(need.task, decode(need.result)))
        return found


def _typed(task: str | None, result: Any) -> Any:
    """A result in the type of its task's annotation, if this process has the task, and the result that type.

    One of another type is plain JSON, and what the task has returned.
    """
    with suppress(UnknownTask, UndecodableArguments):
        codec = registry.get(task or "").result_type
        return result if result is None or codec is None else codec.decode("The result", result)
    return result

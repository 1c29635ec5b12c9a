"""What a task with `takes_context=True` learns about its run."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from .models import Job


@dataclass(frozen=True)
class JobContext:
    """The first argument of a task that asked for it. Only `job` costs a query, once, and only when used."""

    job_id: int
    attempt: int
    """The number of this run of the job: 1, 2, …"""
    max_attempts: int
    queue_name: str
    worker: str
    """The name of the worker process."""
    database: str
    """The alias of the database that holds the job."""

    @cached_property
    def job(self) -> "Job":
        """The job's row, as it was when it was first asked for."""
        from .models import Job

        return Job.objects.using(self.database).get(pk=self.job_id)

    async def aget_job(self) -> "Job":
        """The same for an `async def` task."""
        return await sync_to_async(lambda: self.job)()

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job fails for good if this run fails."""
        return self.attempt >= self.max_attempts

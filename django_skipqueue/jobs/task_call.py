"""`TaskCall`: a task with its arguments, made by `.s()`, for `.defer_many()` or for the steps of a chain, for example.

The arguments are checked when the object is made, so that they always fit the task, and the table can store them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from ..parts.batches.options import AfterCall
from ..values.bounds import check_columns
from ..values.records import EncodedCall, JobSpec
from .placement import placement

if TYPE_CHECKING:
    from ..models import Job


@dataclass(frozen=True)
class TaskCall(
    AfterCall,
):
    """A task with the arguments of one call."""

    spec: JobSpec
    call: EncodedCall
    database: str | None = None
    """The alias of the database for the job; `None` if the settings choose the database."""
    shard: str | None = None
    """The string whose hash chooses the database, if the task or the call has a shard key."""
    inserted: "Callable[[Job], object] | None" = field(default=None, compare=False, repr=False)
    """Called with each job that `defer` inserts. The backend for `django.tasks` uses it to send Django's signal."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that the table cannot store."""
        check_columns(self.spec._asdict())

    def __repr__(self) -> str:
        return f"<TaskCall of {self.spec.task}>"

    def defer(self) -> "Job":
        """Insert a job in the caller's transaction, as the task's `.defer()` does."""
        from ..models import Job

        alias = placement().choose(self.spec, self.call, named=self.database, shard=self.shard)
        job = Job.objects.insert(self.spec, self.call, database=alias)
        if self.inserted is not None and job.created:
            self.inserted(job)
        return job

    async def adefer(self) -> "Job":
        """`defer` for async code."""
        return await sync_to_async(self.defer)()

    def in_database(self, alias: str) -> "TaskCall":
        """Return the call for this database, unless the call or its key already determines a database."""
        return self if self.database else replace(self, database=self.bound_to or alias)

    @property
    def bound_to(self) -> str | None:
        """The alias of the only database in which the job may be; `None` if it may be in any database."""
        return self.database or placement().bound_to(self.spec, self.call, shard=self.shard)

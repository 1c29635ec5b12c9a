"""`TaskCall`: a task with arguments, made by `.s()`: for `.defer_many()`, or for a part, such as a step of a chain.

Invariant: the arguments fit the task, and the table can store them: they were checked when the call was made.
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
    """A task with arguments."""

    spec: JobSpec
    call: EncodedCall
    database: str | None = None
    """The alias of the database; `None`: `SKIPQUEUE["PLACEMENT"]` chooses, or `SKIPQUEUE["DATABASE"]`."""
    shard: str | None = None
    """The text of its shard key, if the task or the call has one."""
    inserted: "Callable[[Job], object] | None" = field(default=None, compare=False, repr=False)
    """Called with each job that `defer` inserts. The backend of Django's tasks sends its signal from here."""

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
        """The call for this database, unless the call names a database, or its key belongs to another database."""
        return self if self.database else replace(self, database=self.bound_to or alias)

    @property
    def bound_to(self) -> str | None:
        """The alias of the only database that the call can be in; `None`: it can be in any database."""
        return self.database or placement().bound_to(self.spec, self.call, shard=self.shard)

"""`TaskCall`: a task with arguments, made by `.s()`: a callback of a batch, a step of a chain, or a job to be deferred.

Invariant: the arguments fit the task, and the table can store them: they were checked when the call was made.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ...exceptions import InvalidOption
from ...jobs.placement import placement
from ...queue.store import Store
from ...values.columns import check_columns
from ...values.records import EncodedCall, JobReference, JobSpec
from .options import AfterFailure, references_to
from .values import stored

if TYPE_CHECKING:
    from ...models import Job


@dataclass(frozen=True)
class TaskCall:
    """A task with arguments."""

    spec: JobSpec
    call: EncodedCall
    database: str | None = None
    """The alias of the database; `None`: as `SKIPQUEUE["PLACEMENT"]` chooses, or `SKIPQUEUE["DATABASE"]`."""
    shard: str | None = None
    """The text of its shard key, if the task or the call has one."""
    inserted: "Callable[[Job], object] | None" = field(default=None, compare=False, repr=False)
    """Called with each job that `defer` has inserted: Django's tasks have a signal."""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` for a value that the table cannot store."""
        check_columns(self.spec._asdict())

    def __repr__(self) -> str:
        return f"<TaskCall of {self.spec.task}>"

    def defer(self) -> "Job":
        """Insert a job in the caller's transaction, as the task's `.defer()` does."""
        from ...models import Job

        alias = placement().choose(self.spec, self.call, named=self.database, shard=self.shard)
        job = Job.objects.insert(self.spec, self.call, database=alias)
        if self.inserted is not None and job.created:
            self.inserted(job)
        return job

    async def adefer(self) -> "Job":
        """`defer` for async code."""
        return await sync_to_async(self.defer)()

    def after(self, *jobs: "Job | int | Any", on_failure: AfterFailure = "wait") -> "TaskCall":
        """The call, made once these jobs are finished: each a `Job`, its id, or a result of `django.tasks`.

        on_failure: what happens if one of them fails or is discarded: `wait` until it is retried and completes,
        `discard` the call, or `run` it all the same. Raises `InvalidOption` for other values.
        """
        return self.waiting_for(references_to(jobs), after_failure=on_failure)

    def waiting_for(self, jobs: tuple[JobReference, ...], *, after_failure: AfterFailure) -> "TaskCall":
        """`after` for references to jobs, which many calls can share."""
        return replace(self, spec=self.spec._replace(after=jobs, after_failure=after_failure))

    def as_callback(self) -> dict[str, Any]:
        """The call as a JSON object in the row of a batch. A callback whose unique key a job holds is skipped."""
        return stored(self.spec._replace(on_conflict="skip"), self.call)

    def in_database(self, alias: str) -> "TaskCall":
        """The call for this database, unless it names one itself, or its key belongs to another one."""
        return self if self.database else replace(self, database=self.bound_to or alias)

    @property
    def bound_to(self) -> str | None:
        """The alias of the only database that the call can be in; `None`: it can be in any of them."""
        return self.database or placement().bound_to(self.spec, self.call, shard=self.shard)


def defer_all(calls: Iterable[TaskCall]) -> "list[Job]":
    """Defer calls in an open transaction, and return their jobs in the same order.

    Calls in succession that have the same columns, and no unique key, are inserted in one statement.
    """
    deferred: list[Job] = []
    for _, group in groupby(enumerate(calls), key=_what_they_share):
        deferred += _defer_together([call for _, call in group])
    return deferred


def _what_they_share(numbered: tuple[int, TaskCall]) -> Any:
    number, call = numbered
    return number if call.call.unique_key is not None else (call.database, call.shard, call.spec)


def _defer_together(calls: list[TaskCall]) -> "list[Job]":
    from ...models import Job

    first = calls[0]
    if len(calls) == 1:
        return [first.defer()]
    jobs = Job.objects.db_manager(placement().choose(first.spec, first.call, named=first.database, shard=first.shard))
    ids = Store(jobs.db).enqueue_many(first.spec, [call.call for call in calls])
    found = jobs.in_bulk(ids)
    deferred = [found[id] for id in ids]
    for call, job in zip(calls, deferred, strict=True):
        if call.inserted is not None:
            call.inserted(job)
    return deferred


def as_call(name: str, given: Any) -> TaskCall:
    """A task, or a task with arguments, as a call. Raises `InvalidOption` for anything else."""
    if isinstance(given, TaskCall):
        return given
    if callable(getattr(given, "s", None)):
        call: TaskCall = given.s()
        return call
    raise InvalidOption(f"{name} must be a task, or a task with arguments such as send.s(1), not {given!r}.")


def in_batch(name: str, call: TaskCall, alias: str) -> TaskCall:
    """The call, in the database of its batch. Raises `InvalidOption` for a call that belongs to another one."""
    placed = call.in_database(alias)
    if placed.database != alias:
        raise InvalidOption(
            f"{name} is a call in the database {placed.database!r}, and the batch is in {alias!r}. Give the batch the "
            "same database, or under the placement 'spread' the same shard_key."
        )
    return placed

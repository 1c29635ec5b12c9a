"""`Batch`: jobs that belong together, with callbacks that are enqueued once the last of these jobs is finished.

A job joins the batch of the innermost `with` block of its thread, or of its asynchronous task. Invariant: a job joins
only in a transaction that makes the batch, or that keeps the batch from being finished.

Invariant: the `with` block has one transaction, which writes the batch, its jobs and its callbacks. So nobody sees a
batch of which some jobs are missing, and nothing of the batch stays if the block raises.

`BatchContext`: what a job can ask about its batch, and about the jobs that it has waited for.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from itertools import groupby, starmap
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ...conf import settings
from ...events.log_format import job_name
from ...exceptions import BatchFinished, InvalidOption, ResultLost, UndecodableArguments, UnknownTask
from ...jobs.placement import placement
from ...jobs.registry import registry
from ...jobs.task_call import TaskCall
from ...queue.store import Store
from ...values.codec import decode, encode
from ...values.records import JobSpec
from .dependencies import NEEDS, NeededJob
from .finish import batch_progress, finish_empty_batch, insert_batch, join_batch
from .options import reference_to
from .values import BatchProgress, stored

if TYPE_CHECKING:
    from ...models import Job, JobBatch
    from ...models.managers import JobQuerySet


class CurrentBatch(NamedTuple):
    """The batch of a `with` block."""

    id: int
    connection: BaseDatabaseWrapper
    """The connection whose transaction has the batch."""


current_batch: ContextVar[CurrentBatch | None] = ContextVar("current_batch", default=None)


def joined_database() -> str | None:
    """The alias of the database of the current batch; `None`: there is no `with` block."""
    current = current_batch.get()
    return None if current is None else current.connection.alias


def in_current_batch(spec: JobSpec, connection: BaseDatabaseWrapper) -> JobSpec:
    """The spec with the id of the batch whose `with` block the caller is in, unless the spec names a batch itself.

    Raises `InvalidOption` if the job would be inserted in another transaction than the batch: it might run, or be
    rolled back, without the batch.
    """
    current = current_batch.get()
    if current is None or "batch_id" in spec.columns:
        return spec
    if connection.alias != current.connection.alias:
        raise InvalidOption(
            f"A job in the database {connection.alias!r} cannot belong to a batch in {current.connection.alias!r}. "
            "Defer it outside of the with block."
        )
    if connection is not current.connection:
        raise InvalidOption(
            "A job of a batch must be deferred in the thread of its with block: another thread has a transaction of "
            "its own. Put the with block into the function that runs in that thread."
        )
    return spec.with_columns(batch_id=current.id)


def defer_all(calls: Iterable[TaskCall]) -> "list[Job]":
    """Defer calls in an open transaction, and return their jobs in the same order.

    Calls in succession that have the same columns, and no unique key, are inserted in one statement.
    """

    def shared(numbered: tuple[int, TaskCall]) -> Any:
        number, call = numbered
        return number if call.call.unique_key is not None else (call.database, call.shard, call.spec)

    deferred: list[Job] = []
    for _, group in groupby(enumerate(calls), key=shared):
        deferred += _defer_together([call for _, call in group])
    return deferred


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
    """The call, in the database of its batch. Raises `InvalidOption` for a call that belongs to another database."""
    placed = call.in_database(alias)
    if placed.database != alias:
        raise InvalidOption(
            f"{name} is a call in the database {placed.database!r}, and the batch is in {alias!r}. Give the batch the "
            "same database, or under the placement 'spread' the same shard_key."
        )
    return placed


class Batch:
    """Jobs that belong together: the jobs that are deferred in its `with` block, and the jobs that are added later.

    `with Batch(on_success=notify.s(1)) as batch:` opens a transaction on the queue's database. Every job that this
    thread inserts in the block, by `.defer()` for example, joins the batch. Once the last job is finished, `on_success`
    is enqueued if all jobs completed, otherwise `on_failure`, and then `on_finish` in any case: each is a task, or a
    task with arguments. If a batch is made in the block of another batch, it belongs to the other batch.
    """

    def __init__(
        self,
        *,
        on_success: TaskCall | Any = None,
        on_failure: TaskCall | Any = None,
        on_finish: TaskCall | Any = None,
        name: str = "",
        database: str | None = None,
        shard_key: str | int | None = None,
    ) -> None:
        """`database`: the alias to use, in place of what `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`.

        `shard_key`: under the placement `spread`, the batch is in the database of the jobs with an equal `shard_key`.
        Raises `InvalidOption` for values that cannot be used.
        """
        if database is not None and database not in connections:
            raise InvalidOption(f"database must be one of {', '.join(sorted(connections))}, not {database!r}.")
        if not isinstance(name, str):
            raise InvalidOption(f"name must be a str, not {name!r}.")
        encode("name", name)
        self.name = name
        self._id: int | None = None
        given = {"on_success": on_success, "on_failure": on_failure, "on_finish": on_finish}
        calls = {key: as_call(key, call) for key, call in given.items() if call is not None}
        self.database = placement().for_batch(database, shard_key, (call.bound_to for call in calls.values()))
        calls = {key: in_batch(key, call, self.database) for key, call in calls.items()}
        for key, call in calls.items():
            if call.spec.after:
                raise InvalidOption(
                    f"{key} cannot wait for other jobs with after: it is enqueued when the last job of the batch is "
                    "finished. Have the callback defer a job that waits, or defer it in the batch."
                )
        # If a job holds the unique key of a callback, the callback is skipped.
        self._callbacks = {
            key: stored(call.spec._replace(on_conflict="skip"), call.call) for key, call in calls.items()
        }
        self._blocks: list[AbstractContextManager[None]] = []

    def __repr__(self) -> str:
        return f"<Batch {self._id or 'not yet inserted'}>"

    @classmethod
    def of(cls, job: "Job | int | Any", *, database: str | None = None) -> "Self | None":
        """The batch of a job; `None` if it has none. Takes a `Job`, its id, or a result of `django.tasks`.

        The callbacks of a batch belong to it as well, and so find it.
        database: where to look for an id, in place of `SKIPQUEUE["DATABASE"]`; a `Job` or result knows its database.
        """
        from ...models import Job

        named = reference_to(job)
        alias = named.database or database or settings.database
        if not isinstance(job, Job):
            job = Job.objects.using(alias).get(pk=named.id)
        return None if job.batch_id is None else cls.get(job.batch_id, database=alias)

    @classmethod
    def get(cls, batch_id: int, *, database: str | None = None) -> "Self":
        """The batch with this id. If it has no row, the first use of the row raises `JobBatch.DoesNotExist`."""
        batch = cls(database=database or settings.database)
        batch._id = batch_id
        return batch

    @property
    def id(self) -> int:
        """The id. Raises `InvalidOption` before the `with` block has begun."""
        if self._id is None:
            raise InvalidOption("This batch has no row yet: its with block makes it.")
        return self._id

    @property
    def row(self) -> "JobBatch":
        """The row of the batch, as it is now. Sends a query each time."""
        from ...models import JobBatch

        return JobBatch.objects.using(self.database).get(pk=self.id)

    @property
    def jobs(self) -> "JobQuerySet":
        """The jobs of the batch, its callbacks among them, and not those of inner batches."""
        from ...models import Job

        return Job.objects.using(self.database).filter(batch_id=self.id)

    def progress(self) -> BatchProgress:
        """How far the batch is. Counts the rows of its jobs, which takes about a millisecond for ten thousand jobs."""
        row = self.row
        counts = batch_progress(self._store, [self.id])[self.id]
        completed, failed, discarded = (counts.get(status, 0) for status in ("completed", "failed", "discarded"))
        return BatchProgress(
            total=sum(counts.values()),
            done=completed + failed + discarded,
            completed=completed,
            failed=failed,
            discarded=discarded,
            is_finished=row.finished_at is not None,
        )

    async def aprogress(self) -> BatchProgress:
        """`progress` for async code."""
        return await sync_to_async(self.progress)()

    def add(self, *calls: TaskCall) -> "list[Job]":
        """Defer these calls as jobs of the batch. Meant for jobs of the batch that need further jobs.

        Raises `BatchFinished`, and writes nothing, if the last job of the batch is finished.
        """
        with self:
            return defer_all(call.in_database(self.database) for call in calls)

    async def aadd(self, *calls: TaskCall) -> "list[Job]":
        """`add` for async code."""
        return await sync_to_async(self.add)(*calls)

    def __enter__(self) -> Self:
        """Insert the batch, or keep it open if it exists. Raises `BatchFinished` if it is finished."""
        block = self._block()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit the transaction, if this block has opened it; roll it back after an error.

        A batch without jobs is finished here.
        """
        self._blocks.pop().__exit__(kind, error, traceback)

    @contextmanager
    def _block(self) -> Iterator[None]:
        is_first = self._id is None
        try:
            with transaction.atomic(using=self.database):
                self._open()
                token = current_batch.set(CurrentBatch(self.id, connections[self.database]))
                try:
                    yield
                finally:
                    current_batch.reset(token)
                if is_first:
                    finish_empty_batch(self._store, self.id)
        except BaseException:
            if is_first:
                self._id = None
            raise

    async def __aenter__(self) -> Self:
        """Raise `TypeError`: Django has no asynchronous transactions."""
        raise TypeError(
            "A batch is one transaction, and Django has no async ones. Put the with block into a def, and call that "
            "with sync_to_async."
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: `__aenter__` has raised."""

    @property
    def _store(self) -> Store:
        return Store(self.database)

    def _open(self) -> None:
        if self._id is not None:
            if not join_batch(self._store, self._id):
                raise BatchFinished(f"Batch {self._id} is finished, or deleted: no job can be added to it.")
            return
        outer = current_batch.get()
        if outer is not None and outer.connection is not connections[self.database]:
            raise InvalidOption("A batch within another one must be in the same database, and in the same thread.")
        self._id = insert_batch(self._store, name=self.name, parent_id=outer and outer.id, callbacks=self._callbacks)


class BatchContext:
    """Properties of `JobContext`."""

    job_id: int
    database: str
    if TYPE_CHECKING:

        @cached_property
        def job(self) -> "Job":
            """The job."""

    @cached_property
    def batch(self) -> Batch | None:
        """The batch of the job, or the batch whose callback it is; `None` without one. The first use sends a query."""
        return Batch.of(self.job, database=self.database)

    @cached_property
    def results(self) -> list[Any]:
        """The results of the jobs that this job has waited for, in their order; `None` for a job without a result.

        Each result has the type of its task's annotation. It stays as JSON has it if the task has no annotation, if the
        value does not fit, or if this process does not have the task. Raises `ResultLost` if a job was deleted, or
        pruned, and `RowMissing` for a model instance whose row is gone. The first use sends a query, and one for each
        model instance.
        """
        found = []
        for need in starmap(NeededJob, Store(self.database).rows(NEEDS, {"id": self.job_id})):
            if need.status is None or (need.status == "completed" and need.is_gone):
                lost, waited = (job_name(self.database, id) for id in (need.needs_job_id, self.job_id))
                raise ResultLost(f"Job {lost}, which job {waited} has waited for, is not there.")
            result = None if need.result is None else decode(need.result)
            with suppress(UnknownTask, UndecodableArguments):
                codec = registry.get(need.task or "").result_type
                result = result if result is None or codec is None else codec.decode("The result", result)
            found.append(result)
        return found

"""`Batch`: a group of jobs, with callbacks that are enqueued when the last job of the group is finished.

A job joins the batch of the innermost `with` block in its thread or asyncio task. The transaction that inserts the job
also inserts the batch, or locks an existing batch so that no other process can finish it.

The `with` block is one transaction, which writes the batch, its jobs and its callbacks. So no other process sees a
batch with missing jobs, and if the block raises, nothing of the batch remains.

`BatchContext` gives a running job access to its batch, and to the results of the jobs that it has waited for.
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
    """The connection in whose transaction the `with` block runs."""


current_batch: ContextVar[CurrentBatch | None] = ContextVar("current_batch", default=None)


def joined_database() -> str | None:
    """Return the database alias of the current batch; `None` outside of any `with` block."""
    current = current_batch.get()
    return None if current is None else current.connection.alias


def in_current_batch(spec: JobSpec, connection: BaseDatabaseWrapper) -> JobSpec:
    """Add the current batch's id to the spec, unless the spec already names a batch, or there is no current batch.

    Raises `InvalidOption` if the job would not be inserted in the batch's transaction: it could then run, or be rolled
    back, without the batch.
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

    One statement inserts neighbouring calls that have the same columns and no unique key.
    """

    def group_key(numbered_call: tuple[int, TaskCall]) -> Any:
        """Return the call's number, which no other call has, if the call must be inserted alone."""
        number, call = numbered_call
        return number if call.call.unique_key is not None else (call.database, call.shard, call.spec)

    deferred: list[Job] = []
    for _key, group in groupby(enumerate(calls), key=group_key):
        deferred += _defer_together([call for _number, call in group])
    return deferred


def _defer_together(calls: list[TaskCall]) -> "list[Job]":
    from ...models import Job

    first = calls[0]
    if len(calls) == 1:
        return [first.defer()]
    jobs = Job.objects.db_manager(placement().choose(first.spec, first.call, named=first.database, shard=first.shard))
    ids = Store(jobs.db).enqueue_many(first.spec, [call.call for call in calls])
    jobs_by_id = jobs.in_bulk(ids)
    deferred = [jobs_by_id[id] for id in ids]
    for call, job in zip(calls, deferred, strict=True):
        if call.inserted is not None:
            call.inserted(job)
    return deferred


def as_call(name: str, task_or_call: Any) -> TaskCall:
    """Turn a task, or a task with arguments, into a call. Raises `InvalidOption` for anything else."""
    if isinstance(task_or_call, TaskCall):
        return task_or_call
    if callable(getattr(task_or_call, "s", None)):
        call: TaskCall = task_or_call.s()
        return call
    raise InvalidOption(f"{name} must be a task, or a task with arguments such as send.s(1), not {task_or_call!r}.")


def in_batch(name: str, call: TaskCall, alias: str) -> TaskCall:
    """Bind the call to its batch's database. Raises `InvalidOption` if the call is bound to another database."""
    bound_call = call.in_database(alias)
    if bound_call.database != alias:
        raise InvalidOption(
            f"{name} is a call in the database {bound_call.database!r}, but the batch is in {alias!r}. Give the batch "
            "the same database, or under the placement 'spread' the same shard_key."
        )
    return bound_call


class Batch:
    """A group of jobs: the jobs that are deferred in its `with` block, and jobs that are added later.

    `with Batch(on_success=notify.s(1)) as batch:` opens a transaction on the queue's database. Every job that this
    thread inserts in the block, by `.defer()` for example, joins the batch. Once the last job is finished, `on_success`
    is enqueued if all jobs completed, otherwise `on_failure`, and then `on_finish` in any case. Each callback is a
    task, or a task with arguments. A batch that is made in the `with` block of another batch becomes an
    inner batch of that batch.
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
        """`database`: the alias of the database, instead of the choice of `SKIPQUEUE["PLACEMENT"]` or `DATABASE`.

        `shard_key`: under the placement `spread`, the batch is in the same database as jobs with this `shard_key`.
        Raises `InvalidOption` if a value is not valid.
        """
        if database is not None and database not in connections:
            raise InvalidOption(f"database must be one of {', '.join(sorted(connections))}, not {database!r}.")
        if not isinstance(name, str):
            raise InvalidOption(f"name must be a str, not {name!r}.")
        encode("name", name)
        self.name = name
        self._id: int | None = None
        callbacks = {"on_success": on_success, "on_failure": on_failure, "on_finish": on_finish}
        calls = {key: as_call(key, callback) for key, callback in callbacks.items() if callback is not None}
        self.database = placement().for_batch(database, shard_key, (call.bound_to for call in calls.values()))
        calls = {key: in_batch(key, call, self.database) for key, call in calls.items()}
        for key, call in calls.items():
            if call.spec.after:
                raise InvalidOption(
                    f"{key} cannot wait for other jobs with after: it is enqueued when the last job of the batch is "
                    "finished. Let the callback defer a job with after, or defer such a job in the batch."
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
        """Return the batch of a job, or `None`. `job`: a `Job`, its id, or a result of `django.tasks`.

        A callback also belongs to its batch.
        database: the database of an id, instead of `SKIPQUEUE["DATABASE"]`. A `Job` or a result knows its database.
        """
        from ...models import Job

        reference = reference_to(job)
        alias = reference.database or database or settings.database
        if not isinstance(job, Job):
            job = Job.objects.using(alias).get(pk=reference.id)
        return None if job.batch_id is None else cls.get(job.batch_id, database=alias)

    @classmethod
    def get(cls, batch_id: int, *, database: str | None = None) -> "Self":
        """Return the batch with this id. If there is none, the first use of its row raises `JobBatch.DoesNotExist`."""
        batch = cls(database=database or settings.database)
        batch._id = batch_id
        return batch

    @property
    def id(self) -> int:
        """The id. Raises `InvalidOption` before the `with` block has begun."""
        if self._id is None:
            raise InvalidOption("This batch has no row yet, because its with block has not begun.")
        return self._id

    @property
    def row(self) -> "JobBatch":
        """The current row of the batch. Each use sends a query."""
        from ...models import JobBatch

        return JobBatch.objects.using(self.database).get(pk=self.id)

    @property
    def jobs(self) -> "JobQuerySet":
        """The jobs of the batch, including its callbacks, but without the jobs of inner batches."""
        from ...models import Job

        return Job.objects.using(self.database).filter(batch_id=self.id)

    def progress(self) -> BatchProgress:
        """Count the batch's jobs by status. Takes about a millisecond for ten thousand jobs."""
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
        """Defer these calls as jobs of the batch. So a running job of the batch can add more jobs to the batch.

        Raises `BatchFinished`, and inserts nothing, if the batch is finished.
        """
        with self:
            return defer_all(call.in_database(self.database) for call in calls)

    async def aadd(self, *calls: TaskCall) -> "list[Job]":
        """`add` for async code."""
        return await sync_to_async(self.add)(*calls)

    def __enter__(self) -> Self:
        """Insert the batch. If it exists already, keep it open, or raise `BatchFinished` if it is finished."""
        block = self._block()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit the transaction if this block has opened it; after an error, roll it back.

        A batch without jobs is finished here.
        """
        self._blocks.pop().__exit__(kind, error, traceback)

    @contextmanager
    def _block(self) -> Iterator[None]:
        is_new = self._id is None
        try:
            with transaction.atomic(using=self.database):
                self._open()
                token = current_batch.set(CurrentBatch(self.id, connections[self.database]))
                try:
                    yield
                finally:
                    current_batch.reset(token)
                if is_new:
                    finish_empty_batch(self._store, self.id)
        except BaseException:
            if is_new:
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
            raise InvalidOption("An inner batch must be in the database and the thread of its outer batch.")
        self._id = insert_batch(self._store, name=self.name, parent_id=outer and outer.id, callbacks=self._callbacks)


class BatchContext:
    """The properties that batches add to `JobContext`."""

    job_id: int
    database: str
    if TYPE_CHECKING:

        @cached_property
        def job(self) -> "Job":
            """The job."""

    @cached_property
    def batch(self) -> Batch | None:
        """The batch of the job, even of a callback; `None` if there is no batch. The first use sends a query."""
        return Batch.of(self.job, database=self.database)

    @cached_property
    def results(self) -> list[Any]:
        """The results of the jobs that this job has waited for, in order; `None` for a job without a result.

        Each result has the type of its task's return annotation. It is a plain JSON value if the task has no
        annotation, if the value does not fit the annotation, or if this process does not know the task. Raises
        `ResultLost` if a job was deleted or pruned, and `RowMissing` for a model instance whose row no longer exists.
        The first use sends one query, and one more for each model instance.
        """
        results = []
        for need in starmap(NeededJob, Store(self.database).rows(NEEDS, {"id": self.job_id})):
            if need.status is None or (need.status == "completed" and need.is_gone):
                needed_name = job_name(self.database, need.needs_job_id)
                own_name = job_name(self.database, self.job_id)
                raise ResultLost(
                    f"The result of job {needed_name}, which job {own_name} has waited for, no longer exists."
                )
            result = None if need.result is None else decode(need.result)
            with suppress(UnknownTask, UndecodableArguments):
                codec = registry.get(need.task or "").result_type
                result = result if result is None or codec is None else codec.decode("The result", result)
            results.append(result)
        return results

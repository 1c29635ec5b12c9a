"""`Job.objects` and `Worker.objects`: filters by what jobs and workers are, and the verbs of users and operators."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING, Any, Unpack

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from ..conf import settings
from ..store import Store
from ..store.columns import check_run_after
from ..store.statements import BATCH
from ..values.codec import decode
from ..values.outcomes import Delay
from ..values.records import EncodedCall, InsertedJob, JobColumns, JobSpec
from .status import UNFINISHED

if TYPE_CHECKING:
    from .job import Job
    from .worker import Worker  # noqa: F401 (ruff does not see it in a subscript)


class JobQuerySet(models.QuerySet["Job"]):
    """Filters named after the statuses, and the verbs of users and operators."""

    def scheduled(self) -> "JobQuerySet":
        """Jobs that are not due yet."""
        return self.filter(status="scheduled")

    def blocked(self) -> "JobQuerySet":
        """Jobs that are due, and that a limit or another job keeps from being claimed. Nothing blocks jobs yet."""
        return self.filter(status="blocked")

    def queued(self) -> "JobQuerySet":
        """Jobs that a worker may claim."""
        return self.filter(status="queued")

    def running(self) -> "JobQuerySet":
        """Jobs that a worker has claimed."""
        return self.filter(status="running")

    def completed(self) -> "JobQuerySet":
        """Jobs whose task returned."""
        return self.filter(status="completed")

    def failed(self) -> "JobQuerySet":
        """Jobs whose last attempt failed."""
        return self.filter(status="failed")

    def discarded(self) -> "JobQuerySet":
        """Jobs that were given up on purpose."""
        return self.filter(status="discarded")

    def unfinished(self) -> "JobQuerySet":
        """Jobs that are not finished. One status at a time, each by its partial index, which `IN` could not use."""
        return self.filter(reduce(or_, [Q(status=status) for status in UNFINISHED]))

    # For code that enqueues by name, and for worker loops written by hand. These ignore the filters of the query set

    def enqueue(
        self,
        task: str,
        *,
        args: str = "[]",
        kwargs: str = "{}",
        unique_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **columns: Unpack[JobColumns],
    ) -> "Job":
        """Insert one job on the caller's connection.

        args, kwargs: JSON texts. metadata: what else is to be kept with the job.
        columns: queue_name, priority, max_attempts, run_after (a timedelta counts from now), timeout (in seconds).

        Where `unique_key` is held by a job that is not finished, that job is returned, with `created` False. Raises
        `InvalidOption` for a value that no row can have.
        """
        spec = JobSpec(task, metadata=json.dumps(metadata or {}), **columns)
        return self.insert(spec, EncodedCall(args, kwargs, unique_key))

    def insert(self, spec: JobSpec, call: EncodedCall) -> "Job":
        """As `enqueue`, for a spec and a call that are made already."""
        store = Store(self.db)
        while True:
            inserted = store.enqueue(spec, call)
            if inserted:
                return self._as_inserted(spec, call, inserted)
            # Not `first()`: its ORDER BY with LIMIT may have PostgreSQL walk over all finished jobs of the same key.
            for holder in self.model._base_manager.using(self.db).filter(unique_key=call.unique_key, finished_at=None):
                holder.created = False
                return holder
            # The holder finished between the two statements: the key is free again.

    def claim(self, *, queue_names: Sequence[str], limit: int = 1, worker_id: str) -> list["Job"]:
        """Take up to `limit` runnable jobs: the queues in the listed order, within each the highest priority first.

        Each job must be completed, failed or released; `Job.heartbeat` keeps it from being recovered until then.
        """
        with transaction.atomic(using=self.db):
            claimed = Store(self.db).claim(queue_names=queue_names, limit=limit, worker_id=worker_id)
            jobs: dict[int, Job] = self.model._base_manager.using(self.db).in_bulk([job.id for job in claimed])
        return [jobs[job.id] for job in claimed]

    # For operators: the jobs that the query set has, if their status allows it. Each returns how many were changed, and
    # works in batches, each one statement; `by` and `reason` are kept in the rows. As `delete`, they are verbs of a
    # query set and not of `Job.objects`: for all jobs say `Job.objects.all().retry()`.

    def retry(self, *, over: Delay = 0.0, by: str = "", reason: str = "") -> int:
        """Put failed and discarded jobs back into their queues at once, or each at a random time within `over`."""
        return self._in_batches(lambda ids: Store(self.db).retry(ids, over=over, by=by, reason=reason))

    def discard(self, *, by: str = "", reason: str = "") -> int:
        """Finish jobs that wait without running them."""
        return self._in_batches(lambda ids: Store(self.db).discard(ids, by=by, reason=reason))

    def cancel(self, *, by: str = "", reason: str = "") -> int:
        """Discard jobs that are not finished. If one is running, its worker interrupts it about a second later."""
        return self._in_batches(lambda ids: Store(self.db).cancel(ids, by=by, reason=reason))

    def run_now(self, *, by: str = "", reason: str = "") -> int:
        """Make scheduled jobs, retries among them, claimable now."""
        return self._in_batches(lambda ids: Store(self.db).run_now(ids, by=by, reason=reason))

    def postpone(self, run_after: datetime | timedelta, *, by: str = "", reason: str = "") -> int:
        """Have jobs that wait be due at a later time, or after a delay counted from now."""
        check_run_after(run_after)
        return self._in_batches(lambda ids: Store(self.db).postpone(ids, run_after, by=by, reason=reason))

    _verb: Any
    for _verb in (retry, discard, cancel, run_now, postpone):
        _verb.queryset_only = _verb.alters_data = True
    del _verb

    def _in_batches(self, change: Callable[[list[int]], set[int]]) -> int:
        """Change these jobs; their ids are read first, so that what is changed does not move what is read."""
        return sum(len(change(ids)) for ids in _batches(list(self.values_list("pk", flat=True))))

    def _as_inserted(self, spec: JobSpec, call: EncodedCall, inserted: InsertedJob) -> "Job":
        """The job as the database has it now, put together from what was sent and what came back."""
        job: Job = self.model(
            **spec._asdict()
            | inserted._asdict()
            | {
                "args": decode(call.args),
                "kwargs": decode(call.kwargs),
                "unique_key": call.unique_key,
                "max_attempts": settings.max_attempts if spec.max_attempts is None else spec.max_attempts,
                "retention": spec.retention and decode(spec.retention),
                "metadata": decode(spec.metadata),
                "attempts": 0,
                "lease": 0,
                "locked_by": "",
                "last_error": "",
                "errors": [],
            }
        )
        job._state.adding, job._state.db = False, self.db
        return job


def _batches(ids: list[int]) -> Iterator[list[int]]:
    rest = iter(sorted(ids, reverse=True))  # of several with one unique key, the newest is retried
    while batch := list(islice(rest, BATCH)):
        yield batch


_JobManager = models.Manager.from_queryset(JobQuerySet)


class JobManager(_JobManager["Job"]):
    """`Job.objects`: works on the database that `SKIPQUEUE["DATABASE"]` names, whatever the project's routers say."""

    def get_queryset(self) -> JobQuerySet:
        """All jobs, in the queue's database."""
        return JobQuerySet(self.model, using=self._db or settings.database)


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Filters for workers."""

    def live(self, *, worker_timeout: float | None = None) -> "WorkerQuerySet":
        """Workers heard of within `worker_timeout` seconds (default: the setting), by the database's clock."""
        within = timedelta(seconds=settings.worker_timeout if worker_timeout is None else worker_timeout)
        return self.filter(heartbeat_at__gt=Now() - within)


_WorkerManager = models.Manager.from_queryset(WorkerQuerySet)


class WorkerManager(_WorkerManager["Worker"]):
    """`Worker.objects`: the processes that run jobs, in the queue's database."""

    def get_queryset(self) -> WorkerQuerySet:
        """All workers, in the queue's database."""
        return WorkerQuerySet(self.model, using=self._db or settings.database)

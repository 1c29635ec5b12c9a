"""The verbs of steps, for one job and for the jobs of a query set: `signal`, `retry_from` and `run_again_from`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import transaction

from ...models.copies import copy_jobs
from ...queue.store import Store
from ...values.outcomes import Delay
from .operate import copy_steps, jobs_with_step, retry_from
from .signals import check_name, send_signal

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet

    from ...models import Job

    JobQuerySet = QuerySet[Job]
else:
    Model = JobQuerySet = object


class StepVerbs(Model):
    """The verbs for one job."""

    _store: Callable[[], Store]
    _take_status: Callable[[Mapping[int, str]], bool]

    def signal(self, name: str, payload: Any = None, *, by: str = "", reason: str = "") -> bool:
        """Send the payload to the `context.wait(name)` of the job's task, in the caller's transaction.

        payload: JSON. A signal that comes before the task waits is kept for the task. Returns False if the job is
        finished, or has already got a signal of this name.
        """
        return bool(send_signal(self._store(), [self.pk], name, payload, by=by, reason=reason))

    async def asignal(self, name: str, payload: Any = None, *, by: str = "", reason: str = "") -> bool:
        """`signal` for async code."""
        return await sync_to_async(self.signal)(name, payload, by=by, reason=reason)

    def retry_from(self, step: str, *, over: Delay = 0.0, by: str = "", reason: str = "") -> bool:
        """Retry a failed or discarded job, and forget its steps from the step of this name on."""
        return self._take_status(retry_from(self._store(), [self.pk], step, over=over, by=by, reason=reason))

    def run_again_from(self, step: str, *, by: str = "", reason: str = "") -> "Job | None":
        """Enqueue a copy of a finished job that has the records before the step of this name. Returns the copy.

        Returns `None` if the job has no such step, or another job holds its unique key.
        """
        jobs: JobQuerySet = type(self)._base_manager.using(self._store().alias)  # type: ignore[assignment]
        copies = run_again_from(jobs.filter(pk=self.pk), step, by=by, reason=reason)
        return jobs.get(pk=copies[self.pk]) if copies else None


class QuerySetStepVerbs(JobQuerySet):
    """The verbs for the jobs of a query set. Each returns the number of changed jobs."""

    _in_batches: Callable[[Callable[[list[int]], Mapping[int, object]]], int]

    def signal(self, name: str, payload: Any = None, *, by: str = "", reason: str = "") -> int:
        """Send the payload to each of these jobs, as `Job.signal` does. Returns how many jobs have got it."""
        check_name(name)
        return self._in_batches(
            lambda ids: dict.fromkeys(send_signal(Store(self.db), ids, name, payload, by=by, reason=reason), "")
        )

    async def asignal(self, name: str, payload: Any = None, *, by: str = "", reason: str = "") -> int:
        """`signal` for async code."""
        return await sync_to_async(self.signal)(name, payload, by=by, reason=reason)

    def retry_from(self, step: str, *, over: Delay = 0.0, by: str = "", reason: str = "") -> int:
        """Retry failed and discarded jobs, and forget their steps from the step of this name on."""
        return self._in_batches(lambda ids: retry_from(Store(self.db), ids, step, over=over, by=by, reason=reason))

    def run_again_from(self, step: str, *, by: str = "", reason: str = "") -> int:
        """Enqueue copies of finished jobs, with the records before the step of this name."""
        jobs = self.model._base_manager.using(self.db)
        return self._in_batches(lambda ids: run_again_from(jobs.filter(pk__in=ids), step, by=by, reason=reason))

    _verb: Any
    for _verb in (signal, asignal, retry_from, run_again_from):
        _verb.queryset_only = _verb.alters_data = True
    del _verb


def run_again_from(jobs: "JobQuerySet", step: str, *, by: str = "", reason: str = "") -> dict[int, int]:
    """Copy the finished jobs that have a step of this name, with the records before that step, and enqueue the copies.

    Returns the id of each copy, by the id of its original.
    """
    store = Store(jobs.db)
    with transaction.atomic(using=store.alias):
        ids = jobs_with_step(store, list(jobs.values_list("pk", flat=True)), step)
        copies: dict[int, int] = copy_jobs(jobs.filter(pk__in=ids), by=by, reason=reason)
        if copies:
            copy_steps(store, copies, step)
    return copies

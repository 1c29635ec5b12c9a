"""The operations that people do on jobs, such as `job.retry()`: for one job, and for the jobs of a query set.

Each operation changes only jobs whose status allows it, and records in their rows who did it and why.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..conf import settings
from ..queue.parameters import BATCH_ROWS
from ..queue.store import Store
from ..values.bounds import check_columns, check_run_after
from ..values.outcomes import Delay
from .copies import copy_jobs
from .status import Status

if TYPE_CHECKING:
    from django.db import models

    from .job import Job

    Model = models.Model
    JobQuerySet = models.QuerySet[Job]
else:
    Model = JobQuerySet = object


class JobVerbs(Model):
    """The operations on one job. Each returns whether the job's status allowed it, and records `by` and `reason`.

    Each raises `InvalidOption` for a value that is not valid.
    """

    status: Any  # columns of the model
    queue_name: Any
    priority: Any

    def retry(self, *, over: Delay = 0.0, by: str = "", reason: str = "") -> bool:
        """Put a failed or discarded job back into its queue, with a fresh set of attempts, at once or within `over`."""
        return self._take_status(self._store().retry([self.pk], over=over, by=by, reason=reason))

    def discard(self, reason: str = "", *, by: str = "") -> bool:
        """Finish a waiting job without running it."""
        return self._take_status(self._store().discard([self.pk], by=by, reason=reason))

    def cancel(self, reason: str = "", *, by: str = "") -> bool:
        """Discard the job unless it is finished. If it runs, its task is interrupted by `JobCancelled`."""
        return self._take_status(self._store().cancel([self.pk], by=by, reason=reason))

    def run_now(self, *, by: str = "", reason: str = "") -> bool:
        """Make a scheduled job due now."""
        return self._take_status(self._store().run_now([self.pk], by=by, reason=reason))

    def postpone(self, run_after: datetime | timedelta, *, by: str = "", reason: str = "") -> bool:
        """Move the due time of a waiting job to a later time; a timedelta counts from now."""
        return self._take_status(self._store().postpone([self.pk], run_after, by=by, reason=reason))

    def reschedule(self, run_after: datetime | timedelta, *, by: str = "", reason: str = "") -> bool:
        """Set the due time of a waiting job to an earlier or a later time; a timedelta counts from now."""
        return self._take_status(self._store().reschedule([self.pk], run_after, by=by, reason=reason))

    def change_queue(self, queue_name: str, *, by: str = "", reason: str = "") -> bool:
        """Put a waiting job into another queue."""
        changed = self._take_status(self._store().change_queue([self.pk], queue_name, by=by, reason=reason))
        if changed:
            self.queue_name = queue_name
        return changed

    def change_priority(self, priority: int, *, by: str = "", reason: str = "") -> bool:
        """Give a waiting job another priority."""
        changed = self._take_status(self._store().change_priority([self.pk], priority, by=by, reason=reason))
        if changed:
            self.priority = priority
        return changed

    def run_again(self, *, by: str = "", reason: str = "") -> "Job | None":
        """Enqueue a copy of a finished job, and return the copy; `None` if another job holds its unique key."""
        jobs: JobQuerySet = type(self)._base_manager.using(self._store().alias)  # type: ignore[assignment]
        copies = copy_jobs(jobs.filter(pk=self.pk), by=by, reason=reason)
        return jobs.get(pk=copies[self.pk]) if copies else None

    def _take_status(self, changed: Mapping[int, str]) -> bool:
        """If the statement has changed the job, set the new status on this object. Returns whether it was changed."""
        if self.pk in changed:
            self.status = Status(changed[self.pk])
        return bool(changed)

    def _store(self) -> Store:
        return Store(self._state.db or settings.database)


class QuerySetVerbs(JobQuerySet):
    """The operations on the jobs of a query set. Each returns the number of changed jobs.

    They change the jobs in batches, with one statement for each batch. Like `delete`, they are not methods of
    `Job.objects`. To change all jobs, call `Job.objects.all().retry()`, for example.
    """

    def retry(self, *, over: Delay = 0.0, by: str = "", reason: str = "") -> int:
        """Put failed and discarded jobs back into their queues at once, or each at a random time within `over`."""
        return self._in_batches(lambda ids: Store(self.db).retry(ids, over=over, by=by, reason=reason))

    def discard(self, *, by: str = "", reason: str = "") -> int:
        """Finish waiting jobs without running them."""
        return self._in_batches(lambda ids: Store(self.db).discard(ids, by=by, reason=reason))

    def cancel(self, *, by: str = "", reason: str = "") -> int:
        """Discard jobs that are not finished. If one is running, its worker interrupts it within a second or two."""
        return self._in_batches(lambda ids: Store(self.db).cancel(ids, by=by, reason=reason))

    def run_now(self, *, by: str = "", reason: str = "") -> int:
        """Make scheduled jobs, including retries, due now."""
        return self._in_batches(lambda ids: Store(self.db).run_now(ids, by=by, reason=reason))

    def postpone(self, run_after: datetime | timedelta, *, by: str = "", reason: str = "") -> int:
        """Move the due time of waiting jobs to a later time; a timedelta counts from now."""
        check_run_after(run_after)
        return self._in_batches(lambda ids: Store(self.db).postpone(ids, run_after, by=by, reason=reason))

    def reschedule(self, run_after: datetime | timedelta, *, by: str = "", reason: str = "") -> int:
        """Set the due time of waiting jobs to an earlier or a later time; a timedelta counts from now."""
        check_run_after(run_after)
        return self._in_batches(lambda ids: Store(self.db).reschedule(ids, run_after, by=by, reason=reason))

    def change_queue(self, queue_name: str, *, by: str = "", reason: str = "") -> int:
        """Put waiting jobs into another queue."""
        check_columns({"queue_name": queue_name})
        return self._in_batches(lambda ids: Store(self.db).change_queue(ids, queue_name, by=by, reason=reason))

    def change_priority(self, priority: int, *, by: str = "", reason: str = "") -> int:
        """Give waiting jobs another priority."""
        check_columns({"priority": priority})
        return self._in_batches(lambda ids: Store(self.db).change_priority(ids, priority, by=by, reason=reason))

    def run_again(self, *, by: str = "", reason: str = "") -> int:
        """Enqueue copies of finished jobs."""
        jobs = self.model._base_manager.using(self.db)
        return self._in_batches(lambda ids: copy_jobs(jobs.filter(pk__in=ids), by=by, reason=reason))

    # The manager does not get these methods, and templates cannot call them.
    _verb: Any
    for _verb in (retry, discard, cancel, run_now, postpone, reschedule, change_queue, change_priority, run_again):
        _verb.queryset_only = _verb.alters_data = True
    del _verb

    def _in_batches(self, change: Callable[[list[int]], Mapping[int, object]]) -> int:
        """Change these jobs in batches. One query finds the ids of all jobs before the first change.

        The result of the query is read one batch at a time, from a server-side cursor. The query set is not evaluated
        again for each batch, because its filter may depend on jobs that an earlier batch has changed.
        """
        return sum(len(change(ids)) for ids in _batches(self._newest_first().iterator(BATCH_ROWS)))

    def _newest_first(self) -> "models.QuerySet[Job, int]":
        """The ids of the jobs, the newest first, because a retry changes only the first job with each unique key."""
        query = self.query
        if query.is_sliced or query.combinator or query.distinct_fields:  # ordering it again would choose other jobs
            jobs = self.model._base_manager.using(self.db).filter(pk__in=self.values("pk"))
        else:
            jobs = self
        return jobs.order_by("-pk").values_list("pk", flat=True)


def _batches(ids: Iterator[int]) -> Iterator[list[int]]:
    while batch := list(islice(ids, BATCH_ROWS)):
        yield batch

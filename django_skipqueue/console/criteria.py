"""`Criteria`: which jobs an operator means, by state, queue, task, arguments, text and time; and deleting jobs by hand.

Invariant: the jobs are read a window at a time, each window the next part of an index. Nothing is sorted, and no
statement reads more than `WINDOW_SIZE` rows.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from ..models import Job, Status
from . import causes
from .job_states import Indexed, Moment, between, is_in, is_indexed, time_column
from .parts import consoles
from .search import Search, Window, having_argument


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """Conditions that a job must all meet; `None` and empty ones are met by every job."""

    state: str | None = None
    queue_name: str | None = None
    task: str | None = None
    cause: str | None = None
    """That of the last error: a class, or a class and the place that raised it, as `causes.text_of` writes it."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Names and values, as typed: `("payment_id", "42")`, `("order.id", "7")`."""
    text: str = ""
    """As in the search box of the admin."""
    since: Moment | None = None
    """When a job has finished, or was claimed, at the earliest; in any other state, when it was enqueued."""
    before: Moment | None = None
    """The end of that time."""

    @property
    def indexed(self) -> Indexed:
        return Indexed.covering(self.state, self.queue_name, self.since, before=self.before)

    @property
    def are_searched(self) -> bool:
        """Whether the jobs are looked for by more than their state and queue, and the time that orders their list."""
        has_time = self.since is not None or self.before is not None
        return bool(self.task or self.cause or self.arguments or self.text) or (
            has_time and not is_indexed(time_column(self.state))
        )

    def windows(self) -> Iterator[Window]:
        window: Window | None = Window.at(self.indexed, 1)
        while window is not None:
            yield window
            window = window.next()

    def within(self, window: Window) -> QuerySet[Job]:
        return self._matching(window.among(window.indexed.jobs()))

    def _matching(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        if self.state is not None:
            jobs = jobs.filter(is_in(self.state))
        if self.queue_name is not None:
            jobs = jobs.filter(queue_name=self.queue_name)
        if self.task is not None:
            jobs = jobs.filter(task=self.task)
        if self.cause is not None:
            jobs = jobs.filter(causes.raised(self.cause))
        if not is_indexed(time_column(self.state)):
            jobs = jobs.filter(between(time_column(self.state), self.since, self.before))
        for path, value in self.arguments:
            jobs = having_argument(jobs, path, value)
        return Search(self.text).among(jobs) if self.text else jobs


def delete_jobs(ids: Collection[int]) -> set[int]:
    """Delete those of these jobs that do not run, with what parts keep about them, and return their ids.

    Locks, then deletes: a job that a worker claims in between is either locked, or running and left alone.
    """
    with transaction.atomic(using=Job.objects.all().db):
        jobs = Job.objects.filter(pk__in=ids).exclude(status=Status.RUNNING).order_by("pk")
        deleted = set(jobs.select_for_update(skip_locked=True).values_list("pk", flat=True))
        for part in consoles():
            if part.on_delete is not None:
                part.on_delete(deleted, jobs.db)
        Job.objects.filter(pk__in=deleted).delete()
    return deleted

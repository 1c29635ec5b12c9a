"""What the page of one cause shows: its counts, its jobs, the error of the last one."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.utils.translation import gettext

from ...models import Job, Status
from ...operators.counts import Count
from ...operators.durations import distance, roughly
from ...operators.job_states import RETRYING, STATES
from ...operators.list_order import Indexed
from ...store import Store
from ...values.cause import Cause
from ..charts.chart import Chart
from ..job_page.attempts import Attempt
from ..job_page.job_page import JobPage
from .shown_cause import ShownCause, cause_of
from .trend import WEEK_HOURS, Trend

MOST_LISTED = 5
"""Jobs in each state that the page lists."""

FAILING = (Status.FAILED.value, RETRYING)
"""The states whose jobs an index finds by their cause."""


@dataclass(frozen=True)
class JobsOfCause:
    shown: ShownCause
    state: str

    @property
    def label(self) -> Any:
        return STATES[self.state]

    @property
    def query(self) -> str:
        return self.shown.list_query(self.state)

    @cached_property
    def count(self) -> Count:
        return self._indexed.count()

    @cached_property
    def first(self) -> list[tuple[Job, str]]:
        """The newest ones, each with the time since it failed, or until it is tried again."""
        columns = ("pk", "queue_name", "attempts", "max_attempts", "run_after", "finished_at", "last_error")
        return [(job, self._when(job)) for job in self._indexed.jobs().only(*columns)[:MOST_LISTED]]

    @property
    def _indexed(self) -> Indexed:
        return Indexed.covering(self.state, cause=self.shown.counts.cause)

    def _when(self, job: Job) -> str:
        now = self.shown.counts.now
        if job.finished_at is not None:
            return distance(job.finished_at, now)
        if job.run_after > now:
            return gettext("next in %(span)s") % {"span": roughly(job.run_after - now)}
        return gettext("due %(span)s ago") % {"span": roughly(now - job.run_after)}


@dataclass(frozen=True)
class CausePage:
    shown: ShownCause

    @classmethod
    def of(cls, cause: Cause) -> "CausePage | None":
        """The page of the cause; `None` if none of its attempts is known."""
        counts = Store.default().failures_of(cause)
        return None if counts is None else cls(ShownCause(counts))

    @cached_property
    def groups(self) -> list[JobsOfCause]:
        return [JobsOfCause(self.shown, state) for state in FAILING]

    @property
    def chart(self) -> Chart:
        return Trend(self.shown.counts, WEEK_HOURS).chart

    @cached_property
    def last_job(self) -> Job | None:
        """The job of the last attempt that is known to have failed so, if the row still has its error."""
        job = Job.objects.filter(pk=self.shown.counts.last_job_id).first()
        return job if job is not None and cause_of(job) == self.shown.counts.cause else self._newest_failing

    @property
    def last_attempt(self) -> Attempt | None:
        if self.last_job is None:
            return None
        return next((each for each in self._page_of(self.last_job).attempts if each.exception), None)

    @property
    def _newest_failing(self) -> Job | None:
        ids = [job.pk for group in self.groups for job, _ in group.first[:1]]
        return Job.objects.filter(pk=max(ids)).first() if ids else None

    def _page_of(self, job: Job) -> JobPage:
        now: datetime = self.shown.counts.now
        return JobPage(job, now)

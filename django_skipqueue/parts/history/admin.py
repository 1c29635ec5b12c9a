"""The page "Failing now" and its part on the dashboard, and the page of one cause of failed attempts.

The page of a cause shows its counts, its jobs, the error of the last one, and its failed attempts by hour: a small
drawing for a table, and a chart.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.utils.formats import date_format, time_format
from django.utils.timezone import get_current_timezone, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console import causes
from ...console.admin import charts
from ...console.admin.charts import Chart, LocalTimes, Series, TimeAxis
from ...console.admin.jobs.attempts import Attempt
from ...console.admin.jobs.page import JobPage
from ...console.counts import Count, grouped
from ...console.durations import distance, roughly
from ...console.job_states import RETRYING, STATES, Indexed, state_of
from ...console.parts import PartNotice
from ...models import Job, Status
from ...queue.store import Store
from ...values.records import Cause
from .failures import FailureCounts, failing_causes, failures_of
from .tally import OTHER

HOUR = 3_600

DAY_HOURS, WEEK_HOURS = 24, 168


@dataclass(frozen=True)
class Trend:
    counts: FailureCounts
    hours: int

    @property
    def path(self) -> str:
        """The bars, as SVG writes them, in a box of `hours` times 100 units."""
        most = max(self.numbers)
        return charts.bars([[number / most for number in self.numbers]])[0] if most else ""

    @property
    def text(self) -> str:
        numbers = self.numbers
        most = max(numbers)
        if not most:
            return gettext("none in 24 hours")
        seconds = self._axis.start + HOUR * numbers.index(most)
        return gettext("24 hours, by hour; most: %(number)s from %(time)s on") % {
            "number": grouped(most),
            "time": time_format(datetime.fromtimestamp(seconds, get_current_timezone()), "H:i"),
        }

    @property
    def chart(self) -> Chart:
        series = Series(_("failed"), "failed", self.numbers, grouped(sum(self.numbers)))
        return Chart(
            "failures",
            _("Failed attempts by hour"),
            LocalTimes(self._axis, get_current_timezone(), timedelta(days=2)),
            charts.of_numbers,
            lambda number: grouped(round(number)),
            [series],
            stacks=True,
        )

    @cached_property
    def numbers(self) -> list[int]:
        axis = self._axis
        return [self.counts.by_hour.get(start // HOUR, 0) for start in range(axis.start, axis.end, HOUR)]

    @property
    def _axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.counts.now.timestamp(), width=HOUR, buckets=self.hours)


NEW = timedelta(hours=1)
"""The age up to which a cause counts as new: the first thing to look at after a deploy."""


@dataclass(frozen=True)
class ShownCause:
    counts: FailureCounts

    @property
    def task(self) -> str:
        return self.counts.cause.task

    @property
    def exception(self) -> str:
        return self.counts.cause.exception.removeprefix("builtins.")

    @property
    def place(self) -> str:
        """The function that raised it, with the line of the last time: `shop.jobs.send:42`; empty if not known."""
        place, line = self.counts.cause.place, self.counts.last_line
        return f"{place}:{line}" if place and line else place

    @property
    def is_new(self) -> bool:
        """Whether it was seen for the first time within the last hour."""
        return self.counts.now - self.counts.first_at < NEW

    @property
    def is_other(self) -> bool:
        """Whether it stands for the causes that were too many to be counted apart, and so has no jobs of its own."""
        return self.task == OTHER

    @property
    def numbers(self) -> list[str]:
        """The numbers of the last hour, of 24 hours and of 7 days."""
        return [grouped(number) for number in (self.counts.in_hour, self.counts.in_day, self.counts.in_week)]

    @property
    def seen(self) -> list[tuple[str, str, str]]:
        """The first and the last time: how long ago, as an ISO time, and in full."""
        return [
            (distance(moment, self.counts.now), moment.isoformat(), date_format(localtime(moment), "DATETIME_FORMAT"))
            for moment in (self.counts.first_at, self.counts.last_at)
        ]

    @property
    def trend(self) -> Trend:
        return Trend(self.counts, DAY_HOURS)

    @property
    def query(self) -> str:
        return causes.query_of(self.counts.cause)

    def list_query(self, state: str) -> str:
        return f"status={state}&{self.query}"


def failures_like(job: Job) -> PartNotice | None:
    """The failed attempts with the cause of this job's last error, while the job has failed or is retried."""
    cause = cause_of(job) if state_of(job) in FAILING else None
    counts = failures_of(Store.default(), cause) if cause else None
    return PartNotice(template="admin/django_skipqueue/history/like.html", about=ShownCause(counts)) if counts else None


def cause_of(job: Job) -> Cause | None:
    last = job.errors[-1] if job.errors else None
    if not isinstance(last, dict):
        return None
    exception, place = (str(last.get(name) or "") for name in ("exception", "place"))
    return Cause(job.task, exception, place) if exception else None


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
        counts = failures_of(Store.default(), cause)
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


MOST_SHOWN = 100
"""Causes on the page."""

MOST_ON_TOP = 5
"""Causes on the dashboard."""


@dataclass(frozen=True)
class FailuresPage:
    """The causes, those first that failed most often in the last hour, then in 24 hours."""

    causes: list[ShownCause]

    @classmethod
    def now(cls) -> "FailuresPage":
        return cls(_causes(MOST_SHOWN))

    @property
    def is_cut(self) -> bool:
        return len(self.causes) == MOST_SHOWN

    @property
    def most(self) -> int:
        return MOST_SHOWN


def top_causes() -> list[ShownCause]:
    """The first causes, for the template `admin/django_skipqueue/history/causes.html`."""
    return _causes(MOST_ON_TOP)


def _causes(limit: int) -> list[ShownCause]:
    return [ShownCause(counts) for counts in failing_causes(Store.default(), limit=limit)]

"""The failed attempts by their cause: read from the roll-ups, on the page "Failing now", and on the page of one cause.

Invariant: the cost does not grow with the number of jobs or of failed attempts. Invariant: the pages change nothing.
Their buttons post to the list of the jobs, which asks and applies the verb.

The page of a cause shows its counts, its jobs, the error of the last one, and its failed attempts by hour: a small
drawing for a table, and a chart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.formats import date_format, time_format
from django.utils.timezone import get_current_timezone, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts
from ...console.admin.charts import Chart, LocalTimes, Series, TimeAxis
from ...console.admin.jobs.attempts import Attempt
from ...console.admin.jobs.page import JobPage
from ...console.admin.ui.views import refreshing
from ...console.counts import Count, grouped
from ...console.durations import distance, roughly
from ...console.job_states import RETRYING, STATES, Indexed, state_of, status_of
from ...console.parts import PartNotice, PartPage
from ...console.search import cause_of_text, cause_query
from ...console.verbs.table import DISCARD, RETRY, RUN_NOW
from ...console.verbs.verb import Verb
from ...models import Job, Status
from ...queue.store import Store
from ...values.records import Cause
from .rollups import OTHER

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin


# pages → the causes of the failed attempts of 7 days, those first that failed most often in the last hour, then in 24
# hours. The columns are those of `FailureCounts`. `among`: the causes that are looked at, the last ones first.
# Reads the row of each cause (index: prune of the failures), then its minutes and hours (index: the primary key).
FAILING = """
WITH cause AS MATERIALIZED (
    SELECT task, exception, place, first_at, last_at, last_line, last_job_id
    FROM skipqueue_failure_rollup
    WHERE span = 0 AND last_at > statement_timestamp() - interval '7 days'
    ORDER BY last_at DESC
    LIMIT %(among)s
),
ranked AS MATERIALIZED (
    SELECT cause.*, in_hour.number AS in_hour, in_day.number AS in_day
    FROM
        cause,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS number
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 60
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '1 hour'
                AND cause.last_at > statement_timestamp() - interval '1 hour'
        ) AS in_hour,
        LATERAL (
            SELECT COALESCE(sum(number), 0)::bigint AS number
            FROM skipqueue_failure_rollup AS rollup
            WHERE
                rollup.span = 3600
                AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
                AND rollup.starts_at > statement_timestamp() - interval '24 hours'
                AND cause.last_at > statement_timestamp() - interval '24 hours'
        ) AS in_day
    ORDER BY in_hour.number DESC, in_day.number DESC, cause.last_at DESC
    LIMIT %(limit)s
)
SELECT
    ranked.task, ranked.exception, ranked.place, ranked.first_at, ranked.last_at, ranked.last_line, ranked.last_job_id,
    ranked.in_hour, ranked.in_day, COALESCE(hourly.number, 0)::bigint, hourly.hours, hourly.numbers,
    statement_timestamp()
FROM
    ranked,
    LATERAL (
        SELECT
            sum(number) AS number, array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (ranked.task, ranked.exception, ranked.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
ORDER BY ranked.in_hour DESC, ranked.in_day DESC, ranked.last_at DESC
"""

# pages → the same of one cause; no row if none of its attempts is known. Index: the primary key of the failures.
FAILURES_OF = """
SELECT
    cause.task, cause.exception, cause.place, cause.first_at, cause.last_at, cause.last_line, cause.last_job_id,
    in_hour.number, hourly.in_day, hourly.number, hourly.hours, hourly.numbers, statement_timestamp()
FROM
    skipqueue_failure_rollup AS cause,
    LATERAL (
        SELECT COALESCE(sum(number), 0)::bigint AS number
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 60
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '1 hour'
    ) AS in_hour,
    LATERAL (
        SELECT
            COALESCE(sum(number) FILTER (WHERE starts_at > statement_timestamp() - interval '24 hours'), 0)::bigint
                AS in_day,
            COALESCE(sum(number), 0)::bigint AS number,
            array_agg(date_part('epoch', starts_at)::bigint / 3600) AS hours,
            array_agg(number) AS numbers
        FROM skipqueue_failure_rollup AS rollup
        WHERE
            rollup.span = 3600
            AND (rollup.task, rollup.exception, rollup.place) = (cause.task, cause.exception, cause.place)
            AND rollup.starts_at > statement_timestamp() - interval '7 days'
    ) AS hourly
WHERE
    cause.span = 0 AND cause.task = %(task)s AND cause.exception = %(exception)s AND cause.place = %(place)s
LIMIT 1
"""


MOST_RANKED = 1_000
"""Causes that are looked at to find those that fail most often."""

HOUR = 3_600
DAY_HOURS, WEEK_HOURS = 24, 168

NEW = timedelta(hours=1)
"""The age up to which a cause counts as new: the first thing to look at after a deploy."""


@dataclass(frozen=True)
class Trend:
    counts: "FailureCounts"
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


class FailureCounts(NamedTuple):
    """The failed attempts with one cause. A failed attempt may be retried: these are not failed jobs."""

    cause: Cause
    first_at: datetime
    last_at: datetime
    last_line: int | None
    """In the file of the place, of the last attempt."""
    last_job_id: int
    in_hour: int
    """Those of the last 60 minutes."""
    in_day: int
    """Those of the current hour and the 23 before it."""
    in_week: int
    """Those of the current hour and the 167 before it."""
    by_hour: Mapping[int, int]
    """The numbers above zero of these 168 hours; each hour as its number since the epoch."""
    now: datetime
    """The database's time."""

    @property
    def task(self) -> str:
        return self.cause.task

    @property
    def exception(self) -> str:
        return self.cause.exception.removeprefix("builtins.")

    @property
    def place(self) -> str:
        """The function that raised it, with the line of the last time: `shop.jobs.send:42`; empty if not known."""
        place, line = self.cause.place, self.last_line
        return f"{place}:{line}" if place and line else place

    @property
    def is_new(self) -> bool:
        """Whether it was seen for the first time within the last hour."""
        return self.now - self.first_at < NEW

    @property
    def is_other(self) -> bool:
        """Whether it stands for the causes that were too many to be counted apart, and so has no jobs of its own."""
        return self.task == OTHER

    @property
    def numbers(self) -> list[str]:
        """The numbers of the last hour, of 24 hours and of 7 days."""
        return [grouped(number) for number in (self.in_hour, self.in_day, self.in_week)]

    @property
    def seen(self) -> list[tuple[str, str, str]]:
        """The first and the last time: how long ago, as an ISO time, and in full."""
        return [
            (distance(moment, self.now), moment.isoformat(), date_format(localtime(moment), "DATETIME_FORMAT"))
            for moment in (self.first_at, self.last_at)
        ]

    @property
    def trend(self) -> Trend:
        return Trend(self, DAY_HOURS)

    @property
    def query(self) -> str:
        return cause_query(self.cause)


def failing_causes(store: Store, *, limit: int) -> list[FailureCounts]:
    """The causes of the last 7 days, those first that failed most often in the last hour, then in 24 hours."""
    return [_counts(row) for row in store.rows(FAILING, {"among": MOST_RANKED, "limit": limit})]


def failures_of(store: Store, cause: Cause) -> FailureCounts | None:
    return next((_counts(row) for row in store.rows(FAILURES_OF, cause._asdict())), None)


def _counts(row: tuple[Any, ...]) -> FailureCounts:
    task, exception, place, *values, hours, numbers, now = row
    by_hour = dict(zip(hours or (), numbers or (), strict=True))
    return FailureCounts._make([Cause(task, exception, place), *values, by_hour, now])


def failures_like(job: Job) -> PartNotice | None:
    """The failed attempts with the cause of this job's last error, while the job has failed or is retried."""
    cause = cause_of(job) if state_of(job) in FAILING_STATES else None
    counts = failures_of(Store.default(), cause) if cause else None
    return PartNotice(template="admin/django_skipqueue/history/like.html", about=counts) if counts else None


def cause_of(job: Job) -> Cause | None:
    last = job.errors[-1] if job.errors else None
    if not isinstance(last, dict):
        return None
    exception, place = (str(last.get(name) or "") for name in ("exception", "place"))
    return Cause(job.task, exception, place) if exception else None


MOST_LISTED = 5
"""Jobs in each state that the page lists."""

FAILING_STATES = (Status.FAILED.value, RETRYING)
"""The states whose jobs an index finds by their cause."""


@dataclass(frozen=True)
class JobsOfCause:
    counts: FailureCounts
    state: str

    @property
    def label(self) -> Any:
        return STATES[self.state]

    @property
    def query(self) -> str:
        return f"status={self.state}&{self.counts.query}"

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
        return Indexed.covering(self.state, cause=self.counts.cause)

    def _when(self, job: Job) -> str:
        now = self.counts.now
        if job.finished_at is not None:
            return distance(job.finished_at, now)
        if job.run_after > now:
            return gettext("next in %(span)s") % {"span": roughly(job.run_after - now)}
        return gettext("due %(span)s ago") % {"span": roughly(now - job.run_after)}


@dataclass(frozen=True)
class CausePage:
    counts: FailureCounts

    @cached_property
    def groups(self) -> list[JobsOfCause]:
        return [JobsOfCause(self.counts, state) for state in FAILING_STATES]

    @property
    def chart(self) -> Chart:
        return Trend(self.counts, WEEK_HOURS).chart

    @cached_property
    def last_job(self) -> Job | None:
        """The job of the last attempt that is known to have failed so, if the row still has its error."""
        job = Job.objects.filter(pk=self.counts.last_job_id).first()
        if job is not None and cause_of(job) == self.counts.cause:
            return job
        newest = [job.pk for group in self.groups for job, _ in group.first[:1]]
        return Job.objects.filter(pk=max(newest)).first() if newest else None

    @property
    def last_attempt(self) -> Attempt | None:
        if self.last_job is None:
            return None
        return next((each for each in JobPage(self.last_job, self.counts.now).attempts if each.exception), None)


MOST_SHOWN = 100
"""Causes on the page."""

MOST_ON_TOP = 5
"""Causes on the dashboard."""


LABELS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these")),
    (RUN_NOW, _("Run these now")),
    (DISCARD, _("Discard these")),
)
"""The verbs for all jobs of a cause."""


def top_causes(_: object = None) -> list[FailureCounts]:
    """The first causes, for the template `admin/django_skipqueue/history/causes.html`."""
    return failing_causes(Store.default(), limit=MOST_ON_TOP)


@refreshing
def failures_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    found = failing_causes(Store.default(), limit=MOST_SHOWN)
    content = {"causes": found, "most": MOST_SHOWN if len(found) == MOST_SHOWN else 0}
    return admin.show(request, "history/page.html", None, content, title=gettext("Failing now"))


def cause_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    task, text = (request.GET.get(name, "").replace("\0", "") for name in ("task", "cause"))
    counts = failures_of(Store.default(), cause_of_text(task, text))
    if counts is None:
        admin.message_user(request, gettext("No failed attempt with this cause is known."), messages.WARNING)
        return HttpResponseRedirect(admin.address("failures"))
    page = CausePage(counts)
    content = {
        "page": page,
        "groups": [(group, _verbs_for(admin, request, group.state)) for group in page.groups],
        "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
    }
    return admin.show(request, "history/cause.html", counts.exception, content, title=counts.exception)


def _verbs_for(admin: "JobAdmin", request: HttpRequest, state: str) -> list[tuple[Verb, Any]]:
    status = status_of(state)
    return [(verb, label) for verb, label in LABELS if verb.is_offered_for(status) and admin.may(request, verb)]


def pages() -> tuple[PartPage, ...]:
    return (
        PartPage(name="failures", path="failures/", view=failures_view, title=_("Failing now")),
        PartPage(name="cause", path="failures/cause/", view=cause_view),
    )

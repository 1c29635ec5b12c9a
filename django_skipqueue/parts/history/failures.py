"""The admin pages about why attempts fail: "Failing now", its section of the dashboard, and the page of one cause.

The pages do not change jobs. Their buttons post to the list of jobs, which asks for confirmation and applies the verb,
or to `acknowledge_view`, which changes the row of the cause.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.formats import date_format, time_format
from django.utils.timezone import get_current_timezone, localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.admin import charts
from ...console.admin.charts import Chart, LocalTimes, Series, TimeAxis
from ...console.admin.dashboard import HOUR_SECONDS
from ...console.admin.jobs.page import JobPage
from ...console.admin.ui.views import refreshing
from ...console.admin.verbs import log
from ...console.counts import Count, grouped
from ...console.durations import distance, roughly
from ...console.job_states import RETRYING, STATES, Indexed, state_of, status_of
from ...console.parts import PartNotice, PartPage
from ...console.search import cause_of, cause_of_text, cause_query, cause_text
from ...console.verbs.table import DISCARD, RETRY, RUN_NOW
from ...console.verbs.verb import Verb
from ...models import Job, Status
from ...queue.store import Store
from ...values.codec import shorten
from ...values.records import Cause
from .bystanders import bystanders
from .causes import (
    LONGEST_NOTE,
    FailureCounts,
    Standing,
    acknowledge,
    failing_causes,
    failures_of,
    last_messages,
    unacknowledge,
)
from .dashboard import deployment_marks, rounded

if TYPE_CHECKING:
    from ...console.admin.jobs.job_admin import JobAdmin


DAY_HOURS, WEEK_HOURS = 24, 168


@dataclass(frozen=True)
class Trend:
    """The number of failed attempts by hour: as a small drawing in a table, and as a chart."""

    counts: FailureCounts
    hours: int

    @property
    def path(self) -> str:
        """The SVG path of the bars, in a box that is `hours` units wide and 100 units high."""
        most = max(self.numbers)
        return charts.bars([[number / most for number in self.numbers]])[0] if most else ""

    @property
    def text(self) -> str:
        numbers = self.numbers
        most = max(numbers)
        if not most:
            return gettext("none in 24 hours")
        seconds = self._axis.start + HOUR_SECONDS * numbers.index(most)
        return gettext("24 hours, by hour; the most were %(number)s, in the hour from %(time)s") % {
            "number": grouped(most),
            "time": time_format(datetime.fromtimestamp(seconds, get_current_timezone()), "H:i"),
        }

    @property
    def chart(self) -> Chart:
        series = Series(_("failed"), "failed", self.numbers, grouped(sum(self.numbers)))
        times = LocalTimes(self._axis, get_current_timezone(), timedelta(days=2))
        return Chart(
            "failures",
            _("Failed attempts by hour"),
            times,
            charts.of_numbers,
            rounded,
            [series],
            stacks=True,
            changes=deployment_marks(Store.default(), times),
        )

    @cached_property
    def numbers(self) -> list[int]:
        axis = self._axis
        return [
            self.counts.by_hour.get(start // HOUR_SECONDS, 0) for start in range(axis.start, axis.end, HOUR_SECONDS)
        ]

    @property
    def _axis(self) -> TimeAxis:
        return TimeAxis.up_to(self.counts.now.timestamp(), width=HOUR_SECONDS, bucket_count=self.hours)


STANDING_HEADINGS = {
    Standing.FAILING: _("Failed in the last 10 minutes"),
    Standing.OPEN: _("Failed at the last attempt of the task"),
    Standing.STOPPED: _("Stopped"),
    Standing.ACKNOWLEDGED: _("Acknowledged"),
}
"""The headings of the table of causes."""


@dataclass(frozen=True)
class ShownCause:
    counts: FailureCounts
    message: str = ""
    why_not_to_blame: str = ""
    """Says what else makes these attempts fail; empty if the task is to blame, or nobody knows."""

    @property
    def heading(self) -> Any:
        return STANDING_HEADINGS[self.counts.standing]

    @property
    def is_quiet(self) -> bool:
        return bool(self.why_not_to_blame) or self.counts.standing in (Standing.STOPPED, Standing.ACKNOWLEDGED)

    @property
    def query(self) -> str:
        return cause_query(self.counts.cause)

    @property
    def numbers(self) -> list[str]:
        """The number of failed attempts in ten minutes, an hour, 24 hours and 7 days."""
        counts = self.counts
        return [grouped(number) for number in (counts.in_ten_minutes, counts.in_hour, counts.in_day, counts.in_week)]

    @property
    def seen(self) -> list[tuple[str, str, str, str]]:
        """The first and the last failed attempt: how long ago, the time as ISO text and in words, the deployment."""
        counts = self.counts
        last = distance(counts.last_at, counts.now)
        if counts.standing == Standing.STOPPED:
            last = gettext("stopped %(when)s") % {"when": last}
        first = distance(counts.first_at, counts.now)
        first_and_last = (
            (first, counts.first_at, counts.first_deployment),
            (last, counts.last_at, counts.last_deployment),
        )
        return [
            (ago, moment.isoformat(), date_format(localtime(moment), "DATETIME_FORMAT"), deployment)
            for ago, moment, deployment in first_and_last
        ]

    @property
    def acknowledgement(self) -> str:
        """A text that says who acknowledged the cause, when and why; empty if nobody has."""
        counts = self.counts
        if counts.acknowledged_at is None:
            return ""
        values = {"user": counts.acknowledged_by, "when": distance(counts.acknowledged_at, counts.now)}
        text = gettext("Acknowledged by %(user)s %(when)s") % values
        if counts.note:
            text = f"{text}: {counts.note}"
        if counts.is_acknowledged:
            return text
        came_back = gettext("since then it has come back, or fails far more often")
        return f"{text}; {came_back}"

    @property
    def trend(self) -> Trend:
        return Trend(self.counts, DAY_HOURS)


def failures_like(job: Job) -> PartNotice | None:
    """Return a notice about the cause of the job's last error, if the job has failed or is retried."""
    cause = cause_of(job) if state_of(job) in FAILING_STATES else None
    counts = failures_of(Store.default(), cause) if cause else None
    return PartNotice(template="admin/django_skipqueue/history/like.html", about=ShownCause(counts)) if counts else None


MOST_JOBS_OF_CAUSE = 5
"""The page lists at most this many jobs per state."""

FAILING_STATES = (Status.FAILED.value, RETRYING)
"""The states in which an index finds jobs by their cause."""


@dataclass(frozen=True)
class JobsOfCause:
    counts: FailureCounts
    state: str

    @property
    def label(self) -> Any:
        return STATES[self.state]

    @property
    def query(self) -> str:
        return f"status={self.state}&{cause_query(self.counts.cause)}"

    @cached_property
    def count(self) -> Count:
        return self._indexed.count()

    @cached_property
    def first(self) -> list[tuple[Job, str]]:
        """The newest jobs, each with the time since it failed or until its next attempt, in words."""
        columns = ("pk", "queue_name", "attempts", "max_attempts", "run_after", "finished_at", "last_error")
        return [(job, self._when(job)) for job in self._indexed.jobs().only(*columns)[:MOST_JOBS_OF_CAUSE]]

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


def _last_job(counts: FailureCounts, groups: list[JobsOfCause]) -> Job | None:
    """Return the last job of the cause; if this job has had another error since, the newest job with the cause."""
    job = Job.objects.filter(pk=counts.last_job_id).first()
    if job is not None and cause_of(job) == counts.cause:
        return job
    newest_ids = [job.pk for group in groups for job, _when in group.first[:1]]
    return Job.objects.filter(pk=max(newest_ids)).first() if newest_ids else None


MOST_CAUSES_SHOWN = 100

MOST_CAUSES_ON_DASHBOARD = 5

CAUSE_VERBS: tuple[tuple[Verb, Any], ...] = (
    (RETRY, _("Retry these jobs")),
    (RUN_NOW, _("Run these jobs now")),
    (DISCARD, _("Discard these jobs")),
)
"""The buttons for all jobs of a cause: the verb and the label of each."""


def shown_causes(*, limit: int, task: str = "") -> list[ShownCause]:
    """Return the causes for the template `admin/django_skipqueue/history/causes.html`, sorted by `failing_causes`."""
    store = Store.default()
    causes = failing_causes(store, limit=limit, task=task)
    messages_of = last_messages(store, causes)
    bystander_sentences = bystanders(store, causes)
    shown = [
        ShownCause(counts, messages_of.get(counts.cause, ""), bystander_sentences.get(counts.cause, ""))
        for counts in causes
    ]
    return sorted(shown, key=lambda cause: (cause.counts.standing, bool(cause.why_not_to_blame)))


def top_causes(_: object = None) -> list[ShownCause]:
    return shown_causes(limit=MOST_CAUSES_ON_DASHBOARD)


@refreshing
def failures_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    causes = shown_causes(limit=MOST_CAUSES_SHOWN)
    content = {"causes": causes, "most": MOST_CAUSES_SHOWN if len(causes) == MOST_CAUSES_SHOWN else 0}
    return admin.show(request, "history/page.html", None, content, title=gettext("Failing now"))


def cause_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    counts = failures_of(Store.default(), _requested_cause(request))
    if counts is None:
        return _redirect_unknown(admin, request)
    groups = [JobsOfCause(counts, state) for state in FAILING_STATES]
    job = _last_job(counts, groups)
    attempts = JobPage(job, counts.now).attempts if job else ()
    content = {
        "counts": counts,
        "shown": ShownCause(counts),
        "chart": Trend(counts, WEEK_HOURS).chart,
        "last_job": job,
        "last": next((attempt for attempt in attempts if attempt.exception), None),
        "groups": [(group, _verbs_for(admin, request, group.state)) for group in groups],
        "selected": [("select_across", "1"), (ACTION_CHECKBOX_NAME, "all")],
        "may_acknowledge": request.user.has_perm(ACKNOWLEDGE_PERMISSION) and not counts.is_other,
        "longest_note": LONGEST_NOTE,
    }
    return admin.show(request, "history/cause.html", counts.exception, content, title=counts.exception)


def acknowledge_view(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    """Acknowledge the cause, with a note; or take the acknowledgement back if the form has the field `take_back`."""
    store, cause, note = Store.default(), _requested_cause(request), shorten(request.POST.get("note", ""), LONGEST_NOTE)
    if "take_back" in request.POST:
        if unacknowledge(store, cause):
            _log(request, cause, gettext("Took back the acknowledgement."))
    elif not acknowledge(store, cause, by=request.user.get_username(), note=note):
        return _redirect_unknown(admin, request)
    else:
        _log(request, cause, " ".join(filter(None, [gettext("Acknowledged."), note])))
    return HttpResponseRedirect(admin.address("cause", query=cause_query(cause)))


def _requested_cause(request: HttpRequest) -> Cause:
    task, text = (request.GET.get(name, "").replace("\0", "") for name in ("task", "cause"))
    return cause_of_text(task, text)


def _redirect_unknown(admin: "JobAdmin", request: HttpRequest) -> HttpResponse:
    admin.message_user(request, gettext("No failed attempt with this cause is known."), messages.WARNING)
    return HttpResponseRedirect(admin.address("failures"))


def _log(request: HttpRequest, cause: Cause, message: str) -> None:
    values = {"cause": cause_text(cause), "task": cause.task}
    log.record_other(request, gettext("the cause %(cause)s of %(task)s") % values, message)


def _verbs_for(admin: "JobAdmin", request: HttpRequest, state: str) -> list[tuple[Verb, Any]]:
    status = status_of(state)
    return [(verb, label) for verb, label in CAUSE_VERBS if verb.is_offered_for(status) and admin.may(request, verb)]


ACKNOWLEDGE_PERMISSION = "django_skipqueue.acknowledge_cause"


def pages() -> tuple[PartPage, ...]:
    return (
        PartPage(name="failures", path="failures/", view=failures_view),
        PartPage(name="cause", path="failures/cause/", view=cause_view),
        PartPage(
            name="acknowledge",
            path="failures/cause/acknowledge/",
            view=acknowledge_view,
            methods=("POST",),
            permission=ACKNOWLEDGE_PERMISSION,
        ),
    )

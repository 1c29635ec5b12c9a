"""What operators see of schedules: the state of each schedule, metrics, rules about problems, and a subcommand.

Times are shown in words, such as `every 5 min` or `at 09:00, Monday to Friday`, and can be translated.
"""

import difflib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import dropwhile, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now
from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.arguments import redacted
from ...console.cli.facts import print_facts
from ...console.cli.show import LABEL_WIDTH
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import GREEN, RED, YELLOW, Coloured, Console, operator
from ...console.durations import clock_time, distance, span
from ...console.facts import Renderers, as_json, columns, in_terminal
from ...console.job_states import STATES as JOB_STATES
from ...console.job_states import state_of
from ...console.metrics.catalogue import MOST_SERIES, gauges
from ...console.parts import BarEntry, PartConsole, PartFact, PartSection
from ...console.rules.rule import Finding, PageLink, Rule, Severity, Threshold
from ...events.log_format import job_name, printable
from ...exceptions import InvalidOption, SkipQueueError
from ...models import Job, Schedule, Status
from ...models.job import AbstractJob
from ...queue.store import Store
from ...values.codec import shorten
from ...values.exposition import Metric
from ...values.fact import Fact
from ...values.part import later
from . import operate
from .fire import SCHEDULE_METADATA_KEY
from .models import Overlap
from .timetable import parsed, timetable, upcoming, zone_of

MOST_TIMES_LISTED = 6
"""The maximum number of times of the day that a text lists. With more, operators see the cron expression itself."""

LAST_DAY_OF_MONTH, LAST_WEEKDAY_OF_MONTH = -1000, -1001
"""The numbers by which the cron library represents a month's last day, and its last day from Monday to Friday."""

ALL_DAYS, ALL_WEEKDAYS, ALL_MONTHS = set(range(1, 32)), set(range(7)), set(range(1, 13))


def in_words(*, cron: str, interval: timedelta | None) -> str:
    """Describe a schedule's times in words. Return the cron expression itself if it is complicated or not valid."""
    if interval is not None:
        return gettext("every %(span)s") % {"span": span(interval)}
    try:
        fields = parsed(cron)
    except InvalidOption:
        return cron
    times = _times(fields)
    if times is None:
        return cron
    return ", ".join(filter(None, [times, _days(fields), _months(fields)]))


def _times(fields: Any) -> str | None:
    seconds, minutes, hours = (sorted(numbers) for numbers in (fields.seconds, fields.minutes, fields.hours))
    if hours == list(range(24)):
        return _through_the_day(seconds, minutes)
    if seconds != [0] or len(minutes) * len(hours) > MOST_TIMES_LISTED:
        return None
    times = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    return gettext("at %(times)s") % {"times": _listed(times)}


def _through_the_day(seconds: Sequence[int], minutes: Sequence[int]) -> str | None:
    if minutes == list(range(60)):
        step = _step(seconds)
        return None if step is None else gettext("every %(span)s") % {"span": span(step or 60)}
    if list(seconds) != [0]:
        return None
    step = _step(minutes)
    if step:
        return gettext("every %(span)s") % {"span": span(60 * step)}
    if list(minutes) == [0]:
        return gettext("every hour")
    if len(minutes) > MOST_TIMES_LISTED:
        return None
    return gettext("every hour at %(minutes)s") % {"minutes": _listed([f":{minute:02}" for minute in minutes])}


def _step(numbers: Sequence[int]) -> int | None:
    """Return n for the numbers 0, n, 2n … below 60, if n divides 60; return 0 for a single 0; otherwise `None`."""
    if list(numbers) == [0]:
        return 0
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and 60 % step == 0 and list(numbers) == list(range(0, 60, step)) else None


def _days(fields: Any) -> str:
    weekdays = {day % 7 if isinstance(day, int) else day for day in fields.weekdays}  # cron has two numbers for Sunday
    by_month = "" if fields.days >= ALL_DAYS else _days_of_month(fields.days)
    by_week = "" if weekdays >= ALL_WEEKDAYS else _days_of_week(weekdays)
    if by_month and by_week:
        both = gettext("%(days)s, if it is %(weekdays)s") if fields.day_and else gettext("%(days)s or %(weekdays)s")
        return both % {"days": by_month, "weekdays": by_week}
    every_hour = set(fields.hours) == set(range(24))  # then the days go without saying
    return by_month or by_week or ("" if every_hour else gettext("every day"))


def _days_of_month(days: Iterable[int]) -> str:
    if set(days) == {LAST_DAY_OF_MONTH}:
        return gettext("on the last day of the month")
    if set(days) == {LAST_WEEKDAY_OF_MONTH}:
        return gettext("on the last working day of the month")
    day_texts = [gettext("day %(day)s") % {"day": day} for day in sorted(days) if day > 0]
    return gettext("on %(days)s of the month") % {"days": _listed(day_texts)}


def _days_of_week(days: set[Any]) -> str:
    every_week = sorted((day - 1) % 7 for day in days if isinstance(day, int))  # Monday is 0, as in Python
    if len(every_week) > 2 and every_week == list(range(every_week[0], every_week[-1] + 1)):
        first_and_last = {"first": WEEKDAYS[every_week[0]], "last": WEEKDAYS[every_week[-1]]}
        texts = [gettext("%(first)s to %(last)s") % first_and_last]
    else:
        texts = [str(WEEKDAYS[day]) for day in every_week]
    for day, week in sorted(day for day in days if not isinstance(day, int)):  # such as the second Friday of a month
        text = gettext("the last %(weekday)s of the month")
        if week != LAST_DAY_OF_MONTH:
            text = gettext("%(weekday)s number %(number)s of the month")
        texts.append(text % {"weekday": WEEKDAYS[(day - 1) % 7], "number": week})
    return _listed(texts)


def _months(fields: Any) -> str:
    if fields.months >= ALL_MONTHS:
        return ""
    return gettext("only in %(months)s") % {"months": _listed([str(MONTHS[month]) for month in sorted(fields.months)])}


def _listed(texts: Sequence[str]) -> str:
    """Join texts: `a`, `a and b`, `a, b and c`."""
    if len(texts) == 1:
        return texts[0]
    return gettext("%(first)s and %(last)s") % {"first": ", ".join(texts[:-1]), "last": texts[-1]}


MOST_SCHEDULES_SHOWN = 500

NEXT_RUNS_SHOWN = 5

RUN_ERROR_LIMIT = 200
"""A run's error is cut to this number of characters."""

LATE_STATE_AFTER = timedelta(minutes=1)
"""A schedule is shown as late only if it is late by more than this time."""

SCHEDULE_STATES = {
    "active": _("on time"),
    "paused": _("paused"),
    "late": _("late"),
    "failing": _("failing"),
    "error": _("cannot run"),
    "retired": _("no longer in the code"),
}


FIRING_STATES = ("active", "failing", "late", "error")
"""The states of schedules that fire, or should fire. All of these states except `active` need attention."""

FAILED_RUNS = Threshold("failing-schedule", 2, "number")


class ScheduledRun(NamedTuple):
    """A job that a schedule has enqueued."""

    id: int
    state: str
    """The status of the job, or `retrying`."""
    error: str
    """The error of the job's last attempt, with secrets masked; empty if no attempt has failed."""
    enqueued_at: datetime

    @property
    def has_failed(self) -> bool:
        """Whether the job or its last attempt has failed."""
        return bool(self.error) and self.state not in (Status.COMPLETED, Status.DISCARDED)


@dataclass(frozen=True)
class ScheduleState:
    row: Schedule
    now: datetime
    runs: Sequence[ScheduledRun]
    """The last jobs, at most five, the newest first, without jobs that no longer exist."""

    @property
    def last_run(self) -> ScheduledRun | None:
        """The last job; `None` if it no longer exists."""
        return next((run for run in self.runs if run.id == self.row.last_job_id), None)

    @property
    def judged_runs(self) -> list[ScheduledRun]:
        """The runs that have failed or succeeded, the newest first."""
        return [run for run in self.runs if run.has_failed or run.state == Status.COMPLETED]

    @cached_property
    def failed_runs(self) -> list[ScheduledRun]:
        """The failed runs since the last success, the newest first."""
        return list(takewhile(attrgetter("has_failed"), self.judged_runs))

    @property
    def failures(self) -> int:
        """The number of runs that failed in a row. A time that was skipped because of a failed run counts too."""
        row = self.row
        has_skipped = row.last_run_at and row.skipped_at and row.skipped_at > row.last_run_at
        return len(self.failed_runs) + bool(self.failed_runs and has_skipped and row.overlap == Overlap.SKIP)

    @property
    def has_just_failed(self) -> bool:
        """Whether enough runs in a row had failed for a finding, before the last runs succeeded."""
        before_successes = dropwhile(lambda run: not run.has_failed, self.judged_runs)
        failed = takewhile(attrgetter("has_failed"), before_successes)
        return len(list(failed)) >= (FAILED_RUNS.of() or math.inf)

    @property
    def failing_since(self) -> datetime:
        """When the first of the runs that have failed in a row was enqueued."""
        first_failed = self.failed_runs[-1]
        may_have_older = first_failed is self.runs[-1]  # the runs before it are no longer known, except for their time
        since = self.row.failing_since if may_have_older else None
        return min(first_failed.enqueued_at, since or first_failed.enqueued_at)

    @property
    def error(self) -> str:
        """Why the schedule cannot run, or the error of the last failed run; otherwise empty."""
        return self.failed_runs[0].error if self.state == "failing" else self.row.error

    @property
    def state(self) -> str:
        """A key of `SCHEDULE_STATES`."""
        if self.row.retired_at is not None:
            return "retired"
        if self.row.paused_at is not None:
            return "paused"
        if self.row.error:
            return "error"
        if self.row.next_run_at is not None and self.row.next_run_at < self.now - LATE_STATE_AFTER:
            return "late"
        return "failing" if self.failures >= (FAILED_RUNS.of() or math.inf) else "active"

    @property
    def late(self) -> float:
        """Seconds since the schedule should have fired; 0 while it is paused."""
        due_at = self.row.next_run_at
        return 0.0 if due_at is None or self.row.paused_at else max(0.0, (self.now - due_at).total_seconds())

    @property
    def words(self) -> str:
        return in_words(cron=self.row.cron, interval=self.row.interval)

    @property
    def fires(self) -> bool:
        return self.state in FIRING_STATES and self.row.next_run_at is not None

    @property
    def next_run(self) -> datetime | None:
        """The next time, in the schedule's time zone; `None` if there is none, or the time zone is unknown."""
        next_run_at = self.row.next_run_at
        if not self.fires or next_run_at is None:
            return None
        aware_time = make_aware(next_run_at) if is_naive(next_run_at) else next_run_at
        try:
            return aware_time.astimezone(zone_of(self.row.timezone))
        except SkipQueueError:
            return None

    @cached_property
    def next_runs(self) -> list[datetime]:
        """The next times, in the schedule's time zone; empty if the schedule does not fire."""
        planned = self.next_run
        if planned is None:
            return []
        try:
            table = timetable(cron=self.row.cron, interval=self.row.interval, zone=self.row.timezone)
        except SkipQueueError:
            return []
        return [time.astimezone(planned.tzinfo) for time in upcoming(table, planned, NEXT_RUNS_SHOWN)]


def name_of_schedule(job: AbstractJob) -> str | None:
    """Return the name of the schedule that enqueued the job, from the job's metadata; `None` without a schedule."""
    schedule_metadata = job.metadata.get(SCHEDULE_METADATA_KEY) if isinstance(job.metadata, dict) else None
    name = schedule_metadata.get("name") if isinstance(schedule_metadata, dict) else None
    return name if isinstance(name, str) else None


def schedule_states(using: str | None = None, **filters: object) -> list[ScheduleState]:
    """Read the first `MOST_SCHEDULES_SHOWN` schedules by name, by at most two queries."""
    schedules = (
        Schedule.objects.db_manager(using)
        .filter(**filters)
        .annotate(now=Now())
        .order_by("name", "pk")[:MOST_SCHEDULES_SHOWN]
    )
    job_ids_by_schedule = {  # the newest job first, each job once
        row.pk: dict.fromkeys([row.last_job_id, *(row.earlier_job_ids or ())]) for row in schedules
    }
    job_ids_to_read = {job_id for job_ids in job_ids_by_schedule.values() for job_id in job_ids if job_id is not None}
    columns = ("pk", "status", "attempts", "last_error", "enqueued_at")
    jobs = Job.objects.db_manager(using).filter(pk__in=job_ids_to_read).only(*columns) if job_ids_to_read else ()
    found = {job.pk: job for job in jobs}
    return [
        ScheduleState(row, row.now, [_run(row, found[id]) for id in job_ids_by_schedule[row.pk] if id in found])
        for row in schedules
    ]


def first_schedules(most: int) -> tuple[list[ScheduleState], int]:
    """Return at most `most` schedules, and the number of schedules that were left out.

    Schedules that need attention come first, then the schedules that fire next.
    """
    schedules = schedule_states()
    schedules.sort(
        key=lambda schedule: (
            schedule.state not in FIRING_STATES[1:],  # False sorts first: a schedule that needs attention
            not schedule.fires,
            schedule.fires and schedule.row.next_run_at,
        )
    )
    return schedules[:most], len(schedules[most:])


def _run(row: Schedule, job: Job) -> ScheduledRun:
    """Make a run from a job. Mask the error by the schedule's arguments."""
    error = redacted(row.task, row.args, row.kwargs).text(job.last_error) if job.last_error else ""
    return ScheduledRun(
        job.pk, state_of(job), shorten(error.strip().partition("\n")[0], RUN_ERROR_LIMIT), job.enqueued_at
    )


_LABELS = ("schedule",)
LAST_RUN = Metric(
    "skipqueue_schedule_last_run_timestamp_seconds", "gauge", "When the schedule last enqueued a job.", _LABELS
)
NEXT_RUN = Metric("skipqueue_schedule_next_run_timestamp_seconds", "gauge", "When the schedule fires next.", _LABELS)
FAILED_RUNS_IN_A_ROW = Metric(
    "skipqueue_schedule_failed_runs", "gauge", "The number of runs that failed in a row, among the last five.", _LABELS
)
LATE_BY = Metric(
    "skipqueue_schedule_late_seconds", "gauge", "Seconds by which the schedule is late; 0 if paused.", _LABELS
)

SCHEDULE: tuple[Fact[ScheduleState], ...] = (
    Fact("name", _("name"), lambda schedule: schedule.row.name),
    Fact("state", _("state"), lambda schedule: schedule.state),
    Fact("times", _("fires"), lambda schedule: schedule.words, field="words"),
    Fact("cron", "", lambda schedule: schedule.row.cron or None),
    Fact("interval", "", lambda schedule: schedule.row.interval and schedule.row.interval.total_seconds()),
    Fact("timezone", _("zone"), lambda schedule: schedule.row.timezone),
    Fact("next", _("next run"), lambda schedule: schedule.row.next_run_at, "time", None, metric=NEXT_RUN),
    Fact("next_runs", "", lambda schedule: [time.isoformat() for time in schedule.next_runs]),
    Fact("last", _("last run"), lambda schedule: schedule.row.last_run_at, "time", "last_run_at", metric=LAST_RUN),
    Fact("job", _("last job"), lambda schedule: schedule.row.last_job_id, field="last_job_id"),
    Fact("last_job_status", "", lambda schedule: schedule.last_run and schedule.last_run.state),
    Fact("task", _("task"), lambda schedule: schedule.row.task),
    Fact("source", _("source"), lambda schedule: schedule.row.source),
    Fact("paused_at", "", lambda schedule: schedule.row.paused_at),
    Fact("error", "", lambda schedule: schedule.error or None),
    Fact("late", "", lambda schedule: schedule.late, "seconds", "late_seconds", metric=LATE_BY),
    Fact("failed_runs", "", lambda schedule: schedule.failures, "jobs", metric=FAILED_RUNS_IN_A_ROW),
)
"""The facts about one schedule."""


def _first_by_name(store: Store) -> list[tuple[str, ScheduleState]]:
    return [(state.row.name, state) for state in schedule_states(store.alias, retired_at=None)[:MOST_SERIES]]


# Sent by late-schedule. Returns the schedules that are late, the longest overdue first: name, task, seconds since the
# planned time, error, id, and the planned time. The table has a row for each schedule.
LATE_SCHEDULES = """
SELECT name, task, extract(epoch FROM statement_timestamp() - next_run_at)::float8, error, id, next_run_at
FROM skipqueue_schedule
WHERE
    paused_at IS NULL
    AND retired_at IS NULL
    AND next_run_at < statement_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY next_run_at
LIMIT %(limit)s
"""


MOST_LATE_SCHEDULES = 50

MISSED_TIME = Threshold("late-schedule", 120.0, "seconds")


def late_schedules(store: Store) -> Iterator[Finding]:
    seconds = MISSED_TIME.of()
    values = {"limit": MOST_LATE_SCHEDULES, "seconds": seconds}
    for name, task, late, error, id, planned_at in store.rows(LATE_SCHEDULES, values) if seconds is not None else ():
        title = gettext("Schedule %(name)s should have run at %(time)s, and is late by %(span)s")
        advice = gettext(
            "Start a runworker whose code or settings contain this schedule, because other runworkers do not run it."
        )
        if error:
            title = gettext("Schedule %(name)s has not been able to run since %(time)s (%(span)s late): %(error)s")
            advice = gettext("Correct its task, its arguments or its times. A supervisor tries again every minute.")
        yield Finding.of(
            Severity.CRITICAL,
            title,
            gettext("It enqueues jobs of %(task)s."),
            advice,
            "python manage.py skipqueue schedules" if error else "python manage.py runworker",
            facts={
                "name": printable(name),
                "task": printable(task),
                "time": clock_time(planned_at, planned_at + timedelta(seconds=late)),
                "span": span(late),
                "error": printable(error),
            },
            subject=name,
            since=planned_at,
            link=PageLink("schedule_change", (id,)),
        )


def failing_schedules(store: Store) -> Iterator[Finding]:
    """Find schedules whose last runs failed. Critical if the newest failed run has no attempts left."""
    for schedule in schedule_states(store.alias):
        if schedule.state != "failing":
            continue
        last_failed, since = schedule.failed_runs[0], schedule.failing_since
        has_older = since < schedule.failed_runs[-1].enqueued_at
        yield Finding.of(
            Severity.CRITICAL if last_failed.state == Status.FAILED else Severity.WARNING,
            gettext("Schedule %(name)s has been failing since %(time)s, %(number)s runs in a row or more: %(error)s")
            if has_older
            else gettext("Schedule %(name)s has been failing since %(time)s, %(number)s runs in a row: %(error)s"),
            gettext("The last run that failed, job %(job)s of %(task)s, is %(state)s."),
            gettext(
                "Fix the task, then run the schedule now. Until then, pause the schedule, as below, so that no more "
                "runs fail."
            ),
            shlex.join(["python", "manage.py", "skipqueue", "schedules", "pause", schedule.row.name]),
            facts={
                "name": printable(schedule.row.name),
                "time": clock_time(since, schedule.now),
                "number": schedule.failures,
                "error": printable(last_failed.error),
                "job": job_name(store.alias, last_failed.id),
                "task": printable(schedule.row.task),
                "state": JOB_STATES[last_failed.state],
            },
            subject=schedule.row.name,
            since=since,
            link=PageLink("schedule_change", (schedule.row.pk,)),
        )


def reported_failures(store: Store, jobs: Sequence[Job]) -> int:
    """Count the jobs of schedules that `failing-schedule` reports, or reported before a run succeeded or a pause."""
    jobs_by_schedule = Counter(map(name_of_schedule, jobs))  # counts the jobs of no schedule under `None`
    states = schedule_states(store.alias, name__in=list(filter(None, jobs_by_schedule)))
    return sum(
        jobs_by_schedule[state.row.name] for state in states if state.state == "failing" or state.has_just_failed
    )


SCHEDULE_COLOURS = {"active": GREEN, "error": RED, "late": RED, "failing": RED, "paused": YELLOW, "retired": YELLOW}

SCHEDULE_VERBS = ("pause", "resume", "run")

SCHEDULE_TEXTS: Renderers[ScheduleState] = {
    "state": lambda state: Coloured(str(SCHEDULE_STATES[state.state]), SCHEDULE_COLOURS[state.state]),
    "timezone": lambda state: state.row.timezone if state.row.cron else "",
    "next": lambda state: f"{state.next_run:%Y-%m-%d %H:%M:%S}" if state.next_run else "",
    "job": lambda state: f"{state.row.last_job_id or ''} {state.last_run.state if state.last_run else ''}".strip(),
}


class Schedules(Watchable):
    name = "schedules"
    help = "List the schedules; show one, run it now, pause or resume it"
    json_help = "print a JSON object for each schedule"

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = "run: enqueue a job of it now; pause, resume; default: show the schedule NAME, or list all"
        parser.add_argument("verb", nargs="?", metavar="VERB", help=verbs)
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="the name of the schedule")

    def runs_in_all_databases(self, options: Mapping[str, Any]) -> bool:
        return options["verb"] is None

    def run(self, console: Console, **options: Any) -> Exit:
        verb, name = options["verb"], options["schedule"]
        if verb in SCHEDULE_VERBS:
            if name is None:
                raise CommandError(f"Name the schedule: skipqueue schedules {verb} NAME", returncode=Exit.USAGE)
            return _apply(console, verb, _schedule(name))
        if name is not None:
            known = ", ".join(SCHEDULE_VERBS)
            raise CommandError(printable(f"{verb!r} is no verb for schedules: {known}."), returncode=Exit.USAGE)
        if verb is not None:
            return _show(console, _schedule(verb), in_json=options["json"])
        states = schedule_states()
        print_facts(console, SCHEDULE, states, SCHEDULE_TEXTS, in_json=options["json"])
        if not states:
            console.say("There are no schedules. Supervisors write the schedules of the code when they start.")
        for state in states:
            if state.error:
                console.say(f"{state.row.name}: {state.error}")
        return Exit.DONE if states else Exit.NEGATIVE


def _show(console: Console, schedule: Schedule, *, in_json: bool) -> Exit:
    """Print the facts of a schedule, and its last jobs."""
    (state,) = schedule_states(pk=schedule.pk)
    if in_json:
        console.json(as_json(SCHEDULE, state) | {"runs": [run._asdict() for run in state.runs]})
        return Exit.DONE
    for fact, renderer in columns(SCHEDULE, [state], SCHEDULE_TEXTS):
        if value := renderer(state) if renderer else in_terminal(fact, state):
            console.line(printable(f"{fact.title!s:<{LABEL_WIDTH}}{value}"))
    for label, text in (("error", state.error), ("paused by", state.row.paused_by)):
        if text:
            console.line(printable(f"{label:<{LABEL_WIDTH}}{text}"))
    for index, time in enumerate(state.next_runs[1:]):
        label = "" if index else "then"
        console.line(f"{label:<{LABEL_WIDTH}}{time:%Y-%m-%d %H:%M:%S}")
    for index, run in enumerate(state.runs):
        label = "" if index else "last jobs"
        text = f"job {run.id} {run.state}, enqueued {distance(run.enqueued_at, state.now)} {run.error}"
        console.line(printable(f"{label:<{LABEL_WIDTH}}{text}".rstrip()))
    return Exit.DONE


def _apply(console: Console, verb: str, schedule: Schedule) -> Exit:
    store = Store.default()
    if verb == "run":
        console.line(str(operate.run_now(store, schedule.pk)))
        return Exit.DONE
    if verb == "pause":
        is_done = operate.pause(store, schedule.pk, by=operator())
        text = "paused" if is_done else "already paused"
    else:
        is_done = operate.resume(store, schedule.pk, by=operator())
        text = "resumed" if is_done else "not paused"
    console.say(f"Schedule {schedule.name} is {text}.")
    return Exit.DONE if is_done else Exit.NEGATIVE


def _schedule(name: str) -> Schedule:
    """Return the schedule with this name. Raises `CommandError` with a suggestion if there is none."""
    schedule = Schedule.objects.filter(name=name).first()
    if schedule is None:
        names = list(Schedule.objects.order_by("name").values_list("name", flat=True)[:1_000])
        close = difflib.get_close_matches(name, names, n=1)
        hint = f" There are: {', '.join(names[:10])}." if names else ""
        if close:
            hint = f" Did you mean {close[0]!r}?"
        raise CommandError(printable(f"No schedule is called {name!r}.{hint}"))
    return schedule


CONSOLE = PartConsole(
    subcommands=(Schedules(),),
    rules=(
        Rule(
            "late-schedule",
            late_schedules,
            _("Every schedule has run on time"),
            is_watched=True,
            threshold=MISSED_TIME,
        ),
        Rule("failing-schedule", failing_schedules, _("No schedule fails"), is_watched=True, threshold=FAILED_RUNS),
    ),
    reported_failures=reported_failures,
    bar_entries=(
        BarEntry(
            label=_("Schedules"),
            page="schedule_changelist",
            place=60,
            permission="view_schedule",
            rules=("late-schedule", "failing-schedule"),
        ),
    ),
    metrics=(gauges("schedules", SCHEDULE, _first_by_name),),
    sections=(
        PartSection(
            name="schedules",
            template="admin/django_skipqueue/schedules/dashboard.html",
            content=later(f"{__package__}.admin.on_dashboard"),
            after="queues",
        ),
    ),
    task_sections=(
        PartSection(
            name="schedules",
            template="admin/django_skipqueue/schedules/dashboard.html",
            content=later(f"{__package__}.admin.on_task"),
        ),
    ),
    job_facts=(
        PartFact(
            template="admin/django_skipqueue/schedules/of_job.html", content=later(f"{__package__}.admin.schedule_of")
        ),
    ),
)

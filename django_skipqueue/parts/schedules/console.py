"""Schedules, for operators: how each is, metrics, a check of the doctor, and a subcommand.

The times are in plain language, `every 5 min`, `at 09:00, Monday to Friday`, in the language of the reader.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, When, Window
from django.db.models.functions import Now
from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.cli.facts import print_facts
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import GREEN, RED, YELLOW, Coloured, Console, operator
from ...console.durations import span
from ...console.facts import Looks
from ...console.metrics.catalogue import MOST, gauges
from ...console.parts import PartConsole, PartFact, PartSection
from ...console.rules.rule import Finding, Rule, Severity
from ...events.log_format import printable
from ...exceptions import InvalidOption, SkipQueueError
from ...models import Job, Schedule
from ...queue.store import Store
from ...values.exposition import Metric
from ...values.fact import Fact
from ...values.part import later
from . import operate
from .operate import LateSchedule, late_schedules
from .timetable import parsed, timetable, upcoming, zone_of

MOST_TIMES = 6
"""Times of the day that are listed; with more, the expression itself is shown."""

LAST, LAST_WEEKDAY = -1000, -1001
"""The library's numbers for the last day of a month, and the last one from Monday to Friday."""

ALL_DAYS, ALL_WEEKDAYS, ALL_MONTHS = set(range(1, 32)), set(range(7)), set(range(1, 13))


def in_words(*, cron: str, interval: timedelta | None) -> str:
    """What the columns of a schedule mean. The expression itself if it is too complicated, or cannot be used."""
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
    seconds, minutes, hours = (sorted(each) for each in (fields.seconds, fields.minutes, fields.hours))
    if hours == list(range(24)):
        return _through_the_day(seconds, minutes)
    if seconds != [0] or len(minutes) * len(hours) > MOST_TIMES:
        return None
    listed = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    return gettext("at %(times)s") % {"times": _listed(listed)}


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
    if len(minutes) > MOST_TIMES:
        return None
    return gettext("every hour at %(minutes)s") % {"minutes": _listed([f":{minute:02}" for minute in minutes])}


def _step(numbers: Sequence[int]) -> int | None:
    """The distance of numbers that divide 60 into equal parts, from 0 on; 0 if it is 0 alone; else `None`."""
    if list(numbers) == [0]:
        return 0
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    return step if step and 60 % step == 0 and list(numbers) == list(range(0, 60, step)) else None


def _days(fields: Any) -> str:
    of_week = {day % 7 if isinstance(day, int) else day for day in fields.weekdays}
    by_month = "" if fields.days >= ALL_DAYS else _days_of_month(fields.days)
    by_week = "" if of_week >= ALL_WEEKDAYS else _days_of_week(of_week)
    if by_month and by_week:
        both = gettext("%(days)s, if it is %(weekdays)s") if fields.day_and else gettext("%(days)s or %(weekdays)s")
        return both % {"days": by_month, "weekdays": by_week}
    return by_month or by_week or gettext("every day") * (set(fields.hours) != set(range(24)))


def _days_of_month(days: Iterable[int]) -> str:
    if set(days) == {LAST}:
        return gettext("on the last day of the month")
    if set(days) == {LAST_WEEKDAY}:
        return gettext("on the last working day of the month")
    numbered = [gettext("day %(day)s") % {"day": day} for day in sorted(days) if day > 0]
    return gettext("on %(days)s of the month") % {"days": _listed(numbered)}


def _days_of_week(days: set[Any]) -> str:
    plain = sorted((day - 1) % 7 for day in days if isinstance(day, int))  # Monday is 0, as in Python
    if len(plain) > 2 and plain == list(range(plain[0], plain[-1] + 1)):
        span_of = {"first": WEEKDAYS[plain[0]], "last": WEEKDAYS[plain[-1]]}
        named = [gettext("%(first)s to %(last)s") % span_of]
    else:
        named = [str(WEEKDAYS[day]) for day in plain]
    for day, number in sorted(day for day in days if not isinstance(day, int)):
        which = gettext("the last %(weekday)s of the month")
        if number != LAST:
            which = gettext("%(weekday)s number %(number)s of the month")
        named.append(which % {"weekday": WEEKDAYS[(day - 1) % 7], "number": number})
    return _listed(named)


def _months(fields: Any) -> str:
    if fields.months >= ALL_MONTHS:
        return ""
    return gettext("only in %(months)s") % {"months": _listed([str(MONTHS[month]) for month in sorted(fields.months)])}


def _listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(texts) == 1:
        return texts[0]
    return gettext("%(first)s and %(last)s") % {"first": ", ".join(texts[:-1]), "last": texts[-1]}


MOST_SHOWN = 500
"""Schedules that are shown."""

NEXT_RUNS = 5

LATE_AFTER = timedelta(minutes=1)
"""By how much a schedule may be late."""

STATES = {
    "active": _("on time"),
    "paused": _("paused"),
    "late": _("late"),
    "error": _("cannot fire"),
    "retired": _("not in the code"),
}


MAY_FIRE = Q(retired_at=None, paused_at=None)

IN_TROUBLE = Case(When(MAY_FIRE & (~Q(error="") | Q(next_run_at__lt=Now() - LATE_AFTER)), then=1), default=0)
"""1 for the states `error` and `late`, 0 for the others."""

NEXT_RUN = Case(When(MAY_FIRE, then=F("next_run_at")))
"""The next time of a schedule that fires."""


@dataclass(frozen=True)
class ScheduleState:
    row: Schedule
    now: datetime
    last_status: str | None
    """The status of the last job; `None` if there is none any more."""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.row.retired_at is not None:
            return "retired"
        if self.row.paused_at is not None:
            return "paused"
        if self.row.error:
            return "error"
        is_late = self.row.next_run_at is not None and self.row.next_run_at < self.now - LATE_AFTER
        return "late" if is_late else "active"

    @property
    def late(self) -> float:
        """Seconds since it should have fired; 0 while it is paused."""
        moment = self.row.next_run_at
        return 0.0 if moment is None or self.row.paused_at else max(0.0, (self.now - moment).total_seconds())

    @property
    def words(self) -> str:
        return in_words(cron=self.row.cron, interval=self.row.interval)

    @property
    def fires(self) -> bool:
        return self.state in ("active", "late", "error") and self.row.next_run_at is not None

    @property
    def next_run(self) -> datetime | None:
        """The next time, in the schedule's time zone. `None` if it does not fire, or has no time zone."""
        moment = self.row.next_run_at
        if not self.fires or moment is None:
            return None
        try:
            return (make_aware(moment) if is_naive(moment) else moment).astimezone(zone_of(self.row.timezone))
        except SkipQueueError:
            return None

    @cached_property
    def next_runs(self) -> list[datetime]:
        """The next times, in the schedule's time zone. Empty if it does not fire."""
        planned = self.next_run
        if planned is None:
            return []
        try:
            table = timetable(cron=self.row.cron, interval=self.row.interval, zone=self.row.timezone)
        except SkipQueueError:
            return []
        return [time.astimezone(planned.tzinfo) for time in upcoming(table, planned, NEXT_RUNS)]


@dataclass(frozen=True)
class FirstSchedules:
    states: list[ScheduleState]
    others: int
    """The number of the others."""


def schedule_states(*, most: int | None = None, **filters: object) -> list[ScheduleState]:
    """The first schedules by name, in one query; default: `MOST_SHOWN`."""
    rows = _with_states(Schedule.objects.filter(**filters)).order_by("name", "pk")[: most or MOST_SHOWN]
    return [_state(row) for row in rows]


def first_schedules(most: int) -> FirstSchedules:
    """Of those in `schedule_states`, the ones in trouble, and then those that fire next: `most`, in one query."""
    listed = Schedule.objects.order_by("name", "pk").values("pk")[:MOST_SHOWN]
    found = _with_states(Schedule.objects.filter(pk__in=listed)).annotate(number=Window(Count("*")))
    rows = list(found.order_by(IN_TROUBLE.desc(), NEXT_RUN.asc(nulls_last=True), "name", "pk")[:most])
    return FirstSchedules([_state(row) for row in rows], rows[0].number - len(rows) if rows else 0)


def _with_states(schedules: "QuerySet[Schedule]") -> "QuerySet[Any]":
    status = Job.objects.filter(pk=OuterRef("last_job_id")).values("status")
    return schedules.annotate(now=Now(), last_status=Subquery(status))


def _state(row: Any) -> ScheduleState:
    return ScheduleState(row, row.now, row.last_status)


_LABELS = ("schedule",)
LAST_RUN = Metric(
    "skipqueue_schedule_last_run_timestamp_seconds", "gauge", "When the schedule last enqueued a job.", _LABELS
)
NEXT = Metric("skipqueue_schedule_next_run_timestamp_seconds", "gauge", "When the schedule fires next.", _LABELS)
LATE_BY = Metric(
    "skipqueue_schedule_late_seconds", "gauge", "Seconds since the schedule should have fired; 0 if paused.", _LABELS
)

SCHEDULE: tuple[Fact[ScheduleState], ...] = (
    Fact("name", _("name"), lambda schedule: schedule.row.name),
    Fact("state", _("state"), lambda schedule: schedule.state),
    Fact("times", _("fires"), lambda schedule: schedule.words, field="words"),
    Fact("cron", "", lambda schedule: schedule.row.cron or None),
    Fact("interval", "", lambda schedule: schedule.row.interval and schedule.row.interval.total_seconds()),
    Fact("timezone", _("zone"), lambda schedule: schedule.row.timezone),
    Fact("next", _("next run"), lambda schedule: schedule.row.next_run_at, "time", None, metric=NEXT),
    Fact("next_runs", "", lambda schedule: [time.isoformat() for time in schedule.next_runs]),
    Fact("last", _("last run"), lambda schedule: schedule.row.last_run_at, "time", "last_run_at", metric=LAST_RUN),
    Fact("job", _("last job"), lambda schedule: schedule.row.last_job_id, field="last_job_id"),
    Fact("last_job_status", "", lambda schedule: schedule.last_status),
    Fact("task", _("task"), lambda schedule: schedule.row.task),
    Fact("source", _("source"), lambda schedule: schedule.row.source),
    Fact("paused_at", "", lambda schedule: schedule.row.paused_at),
    Fact("error", "", lambda schedule: schedule.row.error or None),
    Fact("late", "", lambda schedule: schedule.late, "seconds", "late_seconds", metric=LATE_BY),
)
"""The facts of a schedule."""


def _scraped(_store: Store) -> list[tuple[str, ScheduleState]]:
    """The first `MOST` schedules, by name."""
    return [(each.row.name, each) for each in schedule_states(most=MOST, retired_at=None)]


schedules = gauges("schedules", SCHEDULE, _scraped)


MOST_LATE = 50
"""Schedules that are read."""

NAMED = 10
"""How many one finding names, at most."""

LATE = 120.0
"""Seconds after which a schedule has missed its time."""


def late(store: Store) -> Iterator[Finding]:
    found = late_schedules(store, limit=MOST_LATE, seconds=LATE)
    broken, silent = ([each for each in found if bool(each.error) is has_error] for has_error in (True, False))
    if broken:
        title = gettext("Schedules cannot fire")
        advice = gettext("Correct their tasks, arguments or times. A supervisor tries again every minute.")
        command = "python manage.py skipqueue schedules"
        yield Finding("late-schedule", Severity.CRITICAL, title, _named(broken), advice, command)
    if silent:
        title = gettext("Schedules have not fired")
        advice = gettext(
            "Start a runworker whose code or settings have these schedules: one with other code does not fire them."
        )
        command = "python manage.py runworker"
        yield Finding("late-schedule", Severity.CRITICAL, title, _named(silent), advice, command)


def _named(found: list[LateSchedule]) -> str:
    shown = (
        gettext("%(name)s, late by %(span)s %(error)s")
        % {"name": printable(each.name), "span": span(each.late), "error": printable(each.error)}
        for each in found[:NAMED]
    )
    return "; ".join([*(each.strip() for each in shown), *(["…"] if len(found) > NAMED else [])])


COLOURS = {"active": GREEN, "error": RED, "late": RED, "paused": YELLOW, "retired": YELLOW}


LOOKS: Looks[ScheduleState] = {
    "state": lambda each: Coloured(str(STATES[each.state]), COLOURS[each.state]),
    "timezone": lambda each: each.row.timezone if each.row.cron else "",
    "next": lambda each: f"{each.next_run:%Y-%m-%d %H:%M:%S}" if each.next_run else "",
    "job": lambda each: f"{each.row.last_job_id or ''} {each.last_status or ''}".strip(),
}


class Schedules(Watchable):
    name = "schedules"
    help = "List the schedules; run one now, pause or resume it"
    json_help = "print a JSON object for each schedule"

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = "run: enqueue a job of it now; pause, resume; default: list all"
        parser.add_argument("verb", nargs="?", choices=("pause", "resume", "run"), metavar="VERB", help=verbs)
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="the name of the schedule")

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        return options["verb"] is None

    def run(self, console: Console, **options: Any) -> Exit:
        verb, name = options["verb"], options["schedule"]
        if verb is not None:
            if name is None:
                raise CommandError(f"Which one? skipqueue schedules {verb} NAME", returncode=Exit.USAGE)
            return _apply(console, verb, _schedule(name))
        found = schedule_states()
        print_facts(console, SCHEDULE, found, LOOKS, in_json=options["json"])
        if not found:
            console.say("There is no schedule. Supervisors write those of the code when they start.")
        for each in found:
            if each.row.error:
                console.say(f"{each.row.name}: {each.row.error}")
        return Exit.DONE if found else Exit.NEGATIVE


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
    """The schedule of this name. Raises `CommandError` with a suggestion."""
    found = Schedule.objects.filter(name=name).first()
    if found is None:
        names = list(Schedule.objects.order_by("name").values_list("name", flat=True)[:1_000])
        close = difflib.get_close_matches(name, names, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(names[:10])}." if names else ""
        raise CommandError(printable(f"No schedule is called {name!r}.{meant}"))
    return found


CONSOLE = PartConsole(
    subcommands=(Schedules(),),
    rules=(Rule("late-schedule", late, _("Every schedule has fired in time")),),
    metrics=(schedules,),
    sections=(
        PartSection(
            name="schedules",
            template="admin/django_skipqueue/schedules/dashboard.html",
            content=later(f"{__package__}.admin.on_dashboard"),
            after="queues",
        ),
    ),
    job_facts=(
        PartFact(
            template="admin/django_skipqueue/schedules/of_job.html", content=later(f"{__package__}.admin.schedule_of")
        ),
    ),
)

"""Schedules, for operators: a subcommand, a check of the doctor, and metrics."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...console.cli.subcommand import Exit, Subcommand
from ...console.cli.tables import GREEN, RED, YELLOW, Coloured
from ...console.cli.terminal import Console, operator
from ...console.doctor.finding import Check, Finding, Severity
from ...console.durations import distance, span
from ...console.metrics import catalogue
from ...console.metrics.catalogue import MOST, Scraped
from ...console.parts import PartConsole, PartFact, PartSection
from ...events.log_format import printable
from ...models import Schedule
from ...queue.store import Store
from ...values.exposition import Family
from . import operate
from .operate import LateSchedule, late_schedules, schedule_times
from .states import STATES, ScheduleState, schedule_states


def schedules(store: Store) -> Iterator[Family]:
    """The times of the first `catalogue.MOST` schedules, by name."""
    found = schedule_times(store, limit=MOST)
    yield Family(catalogue.LAST_RUN, {(each.name,): each.last_run for each in found if each.last_run is not None})
    yield Family(catalogue.NEXT_RUN, {(each.name,): each.next_run for each in found if each.next_run is not None})
    yield Family(catalogue.LATE, {(each.name,): each.late for each in found})


MOST_LATE = 50
"""Schedules that are read."""

NAMED = 10
"""How many one finding names, at most."""

LATE = 120.0
"""Seconds after which a schedule has missed its time."""


def late(store: Store) -> Iterator[Finding]:
    found = late_schedules(store, limit=MOST_LATE, seconds=LATE)
    broken = [each for each in found if each.error]
    if broken:
        yield Finding(
            "late-schedule",
            Severity.CRITICAL,
            gettext("Schedules cannot fire"),
            _named(broken),
            gettext("Correct their tasks, arguments or times. A supervisor tries again every minute."),
            "python manage.py skipqueue schedules",
        )
    if len(found) > len(broken):
        yield Finding(
            "late-schedule",
            Severity.CRITICAL,
            gettext("Schedules have not fired"),
            _named([each for each in found if not each.error]),
            gettext(
                "Start a runworker whose code or settings have these schedules: one with other code does not fire them."
            ),
            "python manage.py runworker",
        )


def _named(found: list[LateSchedule]) -> str:
    shown = (
        gettext("%(name)s, late by %(span)s %(error)s")
        % {"name": printable(each.name), "span": span(each.late), "error": printable(each.error)}
        for each in found[:NAMED]
    )
    return "; ".join([*(each.strip() for each in shown), *(["…"] if len(found) > NAMED else [])])


HEADINGS = ("name", "state", "schedule", "zone", "next run", "last run", "last job", "source")

COLOURS = {"active": GREEN, "error": RED, "late": RED, "paused": YELLOW, "retired": YELLOW}


class Schedules(Subcommand):
    name = "schedules"
    help = "List the schedules; run one now, pause or resume it"

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = "run: enqueue a job of it now; pause, resume; default: list all"
        parser.add_argument("verb", nargs="?", choices=sorted(VERBS), metavar="VERB", help=verbs)
        parser.add_argument("schedule", nargs="?", metavar="NAME", help="the name of the schedule")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each schedule")

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        return options["verb"] is None

    def run(self, console: Console, **options: Any) -> Exit:
        verb, name = options["verb"], options["schedule"]
        if verb is not None:
            if name is None:
                raise CommandError(f"Which one? skipqueue schedules {verb} NAME", returncode=Exit.USAGE)
            return VERBS[verb](console, _schedule(name))
        found = schedule_states()
        if options["json"]:
            for each in found:
                console.json(_as_json(each))
        elif found:
            console.table(HEADINGS, map(_row, found), right=("last job",))
        if not found:
            console.say("There is no schedule. Supervisors write those of the code when they start.")
        for each in found:
            if each.row.error:
                console.say(f"{each.row.name}: {each.row.error}")
        return Exit.DONE if found else Exit.NEGATIVE


def _run(console: Console, schedule: Schedule) -> Exit:
    console.line(str(operate.run_now(Store.default(), schedule.pk)))
    return Exit.DONE


def _pause(console: Console, schedule: Schedule) -> Exit:
    is_new = operate.pause(Store.default(), schedule.pk, by=operator())
    console.say(f"Schedule {schedule.name} is {'' if is_new else 'already '}paused.")
    return Exit.DONE if is_new else Exit.NEGATIVE


def _resume(console: Console, schedule: Schedule) -> Exit:
    was_paused = operate.resume(Store.default(), schedule.pk, by=operator())
    console.say(f"Schedule {schedule.name} is {'resumed' if was_paused else 'not paused'}.")
    return Exit.DONE if was_paused else Exit.NEGATIVE


VERBS: dict[str, Callable[[Console, Schedule], Exit]] = {"run": _run, "pause": _pause, "resume": _resume}


def _schedule(name: str) -> Schedule:
    """The schedule of this name. Raises `CommandError` with a suggestion."""
    found = Schedule.objects.filter(name=name).first()
    if found is None:
        names = list(Schedule.objects.order_by("name").values_list("name", flat=True)[:1_000])
        close = difflib.get_close_matches(name, names, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(names[:10])}." if names else ""
        raise CommandError(printable(f"No schedule is called {name!r}.{meant}"))
    return found


def _row(each: ScheduleState) -> list[str]:
    row = each.row
    return [
        row.name,
        Coloured(str(STATES[each.state]), COLOURS[each.state]),
        each.words,
        row.timezone if row.cron else "",
        f"{each.next_run:%Y-%m-%d %H:%M:%S}" if each.next_run else "",
        distance(row.last_run_at, each.now) if row.last_run_at else "",
        f"{row.last_job_id} {each.last_status or ''}".strip() if row.last_job_id else "",
        row.source,
    ]


def _as_json(each: ScheduleState) -> dict[str, Any]:
    row = each.row
    return {
        "name": row.name,
        "state": each.state,
        "task": row.task,
        "cron": row.cron or None,
        "interval": row.interval and row.interval.total_seconds(),
        "timezone": row.timezone,
        "words": each.words,
        "next_runs": [time.isoformat() for time in each.next_runs],
        "last_run_at": row.last_run_at,
        "last_job_id": row.last_job_id,
        "last_job_status": each.last_status,
        "source": row.source,
        "paused_at": row.paused_at,
        "error": row.error or None,
    }


def _on_dashboard(_: Any) -> Any:
    from .admin import on_dashboard  # a command does not need the admin

    return on_dashboard()


def _of_job(job: Any) -> Any:
    from .admin import schedule_of

    return schedule_of(job)


CONSOLE = PartConsole(
    subcommands=(Schedules(),),
    checks=(Check("late-schedule", late, _("Every schedule has fired in time")),),
    metrics=(Scraped("schedules", schedules),),
    sections=(
        PartSection(
            name="schedules",
            template="admin/django_skipqueue/schedules/dashboard.html",
            content=_on_dashboard,
            after="queues",
        ),
    ),
    job_facts=(PartFact(template="admin/django_skipqueue/schedules/of_job.html", content=_of_job),),
)

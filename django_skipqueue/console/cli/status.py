"""`skipqueue status`: the queues, the workers and the jobs, at one moment or again and again.

Invariant: no statement counts further than a cap, so that the answer takes no longer with ten million jobs.
"""

import time
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from ...conf import settings
from ...events.log_format import in_words, printable
from ...values.counting import quantile
from ..parts import externals
from ..queue_states import QueueState
from . import option_types
from .snapshot import FAILED_IN_LAST_HOUR, Snapshot, counted, in_full
from .subcommand import Exit, Subcommand
from .tables import RED, YELLOW, Coloured
from .terminal import Console, shown_time

HEADINGS = ("queue", "queued", "oldest", "running", "longest", "jobs/min", "p95 wait", "workers", "note")


class Status(Subcommand):
    name = "status"
    help = "Show the queues, the workers, and how many jobs wait and have failed"

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--watch",
            type=option_types.duration,
            nargs="?",
            const=option_types.duration("2s"),
            metavar="DURATION",
            help="again and again, until Ctrl-C; without a duration, every 2s",
        )
        add("--json", action="store_true", help="print a JSON object")

    def goes_over_all(self, options: Mapping[str, Any]) -> bool:
        """What is shown again and again is one database."""
        return not options["watch"]

    def run(self, console: Console, **options: Any) -> Exit:
        interval, show = options["watch"], _show_json if options["json"] else _show
        show(console, Snapshot.now())
        try:
            while interval:
                time.sleep(interval.total_seconds())
                snapshot = Snapshot.now()
                if show is _show:
                    console.clear()
                show(console, snapshot)
        except KeyboardInterrupt:  # the way to end it
            pass
        return Exit.DONE


def _show_json(console: Console, snapshot: Snapshot) -> None:
    console.json(snapshot.as_json())


def _show(console: Console, snapshot: Snapshot) -> None:
    console.line(shown_time(snapshot.at))
    console.line()
    if snapshot.queues:
        rows = [_row(queue) for queue in snapshot.queues]
        console.table(HEADINGS, rows, right=HEADINGS[1:-1])
    else:
        console.line("No job is queued or running, and none has ended lately.")
    console.line()
    if blocked := [queue for queue in snapshot.queues if queue.blocked.found]:
        named = ", ".join(f"{queue.name} {counted(queue.blocked)}" for queue in blocked)
        console.line(printable(f"Blocked: {named}."))
    jobs = snapshot.jobs
    last_hour = in_full(jobs[FAILED_IN_LAST_HOUR])
    texts = [f"{in_full(count)} {name}" for name, count in jobs.items() if name != FAILED_IN_LAST_HOUR]
    console.line(f"Jobs: {', '.join(texts)} ({last_hour} in the last hour).")
    console.line(_workers(snapshot))
    for part in snapshot.parts:
        for line in part.lines:
            console.line(printable(line))


def _row(queue: QueueState) -> list[str]:
    now, rate = queue.now, queue.rate
    waited = rate and quantile(rate.waited, 0.95)
    return [
        queue.name,
        f"{'about ' if now.is_estimate else ''}{now.queued:,}",
        "" if now.oldest is None else in_words(now.oldest),
        f"{now.running:,}",
        "" if now.longest is None else in_words(now.longest),
        "" if rate is None else _number(rate.per_minute),
        "" if waited is None else in_words(waited),
        f"{len(queue.workers)}",
        _note(queue),
    ]


def _number(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 1 or not per_minute else f"{per_minute:.1g}"


def _note(queue: QueueState) -> str:
    """What an operator has to know: the queue is paused, no worker serves it, or workers of it are late."""
    if pause := queue.pause:
        until = f"until {shown_time(pause.paused_until)}" if pause.paused_until else "until it is resumed"
        by, reason = f" by {pause.paused_by}" if pause.paused_by else "", f": {pause.reason}" if pause.reason else ""
        return Coloured(f"paused {until}{by}{reason}", YELLOW)
    if not queue.workers:
        unserved = [each.unserved for each in externals() if queue.name in settings.external_queues]
        return Coloured(unserved[0] if unserved else "no worker serves it", RED) if queue.now.queued else ""
    late = sum(worker.state == "late" for worker in queue.workers)
    return Coloured(f"{late} of its workers late", YELLOW) if late else ""


def _workers(snapshot: Snapshot) -> str:
    late = snapshot.workforce.late_or_stale
    named = ", ".join(f"{worker.name} {worker.state} for {in_words(worker.age.total_seconds())}" for worker in late[:5])
    numbers = ", ".join(f"{number} {state}" for state, number in snapshot.workforce.by_state.items())
    return printable(f"Workers: {numbers}{f' ({named})' if named else ''}.")

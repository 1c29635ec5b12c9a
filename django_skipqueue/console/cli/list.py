"""`skipqueue list`: the jobs in a status, of a task, with an argument, of the last hour, as text and as JSON.

Invariant: secrets in arguments, errors and results are masked, as in the admin.
"""

import json
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Now

from ...events.log_format import in_words
from ...models import FINISHED, Job, Status
from ...values.redaction import Redacted
from ..arguments import named, redacted
from ..durations import held_since
from ..job_states import RETRYING, state_of
from ..parts import holder_of
from ..search import Window
from . import option_types
from .choosing import add_criteria, by_criteria, cut_note
from .subcommand import Exit, Subcommand
from .tables import BLUE, DIM, GREEN, RED, YELLOW, Coloured
from .terminal import Console

COLOURS = {
    Status.COMPLETED: GREEN,
    Status.DISCARDED: DIM,
    Status.FAILED: RED,
    Status.RUNNING: BLUE,
    RETRYING: YELLOW,
}

TIMES = ("run_after", "enqueued_at", "started_at", "finished_at")


def call_of(job: Job) -> Redacted:
    return redacted(job.task, job.args, job.kwargs)


def state_cell(job: Job) -> Coloured:
    state = state_of(job)
    return Coloured(state, COLOURS.get(state, ""))


def arguments_text(job: Job, call: Redacted) -> str:
    """The arguments as in a call: `payment_id=42, email="x"`."""
    passed = [*named(job.task, call.args), *call.kwargs.items()]
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in passed)


def when(job: Job, now: datetime) -> str:
    """The time that matters in this state: `for 12m04s, 40 %`, `in 2h00m`, `4m10s ago`."""
    if job.status in FINISHED and job.finished_at:
        return f"{in_words((now - job.finished_at).total_seconds())} ago"
    if job.status == Status.RUNNING:
        started = job.started_at or job.locked_at or job.run_after
        if holder := holder_of(job):
            return held_since(holder, started, now)
        progress = job.current_progress
        so_far = f", {progress.percent} %" if progress else ""
        return f"for {in_words((now - started).total_seconds())}{so_far}"
    seconds = (job.run_after - now).total_seconds()
    if job.status == Status.BLOCKED and seconds <= 0:
        return f"for {in_words(-seconds)}"
    return f"in {in_words(seconds)}" if seconds > 0 else f"due {in_words(-seconds)} ago"


def error_line(job: Job, call: Redacted) -> str:
    """The first line of the last error, unless the job has succeeded since."""
    return "" if job.status == Status.COMPLETED else call.text(job.last_error).strip().partition("\n")[0]


def masked(job: Job, value: Any) -> Any:
    """A value that is not an argument, with the values of secret names in it masked."""
    return redacted(job.task, [], {"": value}).kwargs[""]


def as_json(job: Job) -> dict[str, Any]:
    call = call_of(job)
    return {
        "id": job.pk,
        "status": state_of(job),
        "queue": job.queue_name,
        "task": job.task,
        "args": call.args,
        "kwargs": call.kwargs,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        **{name: getattr(job, name) for name in TIMES},
        "worker": job.worker_name or None,
        "last_error": call.text(job.last_error) or None,
    }


HEADINGS = ("id", "status", "queue", "task", "attempts", "when", "arguments and error")


class List(Subcommand):
    """Reads no more windows than it takes to find as many jobs as are asked for."""

    name = "list"
    help = "List jobs: the newest, or those that the options say"

    def add_arguments(self, parser: CommandParser) -> None:
        add_criteria(parser)
        parser.add_argument("--limit", type=option_types.positive, default=20, help="at most so many; default: 20")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each job")

    def run(self, console: Console, **options: Any) -> Exit:
        choice, limit = by_criteria(options), options["limit"]
        found: list[Any] = []
        cut: list[Window] = []
        for part in choice.parts():
            found += part.jobs.annotate(now=Now())[: limit + 1 - len(found)]
            cut += [part.cut_after] if part.cut_after else []
            if len(found) > limit:
                break
        if not found and not cut:
            choice.explain_nothing()
        print_jobs(console, found[:limit], in_json=options["json"])
        _say_what_is_missing(console, len(found), limit, cut_note(cut) if cut and len(found) <= limit else "")
        return Exit.DONE if found else Exit.PARTIAL if cut else Exit.NEGATIVE


def print_jobs(console: Console, jobs: list[Any], *, in_json: bool) -> None:
    """Print these jobs, which have the database's time as `now`."""
    if in_json:
        for job in jobs:
            console.json(as_json(job))
    elif jobs:
        console.table(HEADINGS, map(_row, jobs), right=("id",))


def _row(job: Any) -> list[str]:
    call = call_of(job)
    texts = filter(None, [arguments_text(job, call), error_line(job, call)])
    attempts = f"{job.attempts}/{job.max_attempts}"
    return [job.shown_id, state_cell(job), job.queue_name, job.task, attempts, when(job, job.now), " · ".join(texts)]


def _say_what_is_missing(console: Console, number: int, limit: int, cut_note: str) -> None:
    if number > limit:
        console.say(f"There are more than {limit:,}; --limit shows more.")
    elif cut_note:
        console.say(f"{'No job found. ' if not number else ''}{cut_note}")
    elif not number:
        console.say("No job found.")

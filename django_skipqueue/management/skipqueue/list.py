"""`skipqueue list`: the jobs in a status, of a task, with an argument, of the last hour."""

from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Now

from ...operators.window import Window
from ..terminal import option_types
from ..terminal.console import Console
from ..terminal.subcommand import Exit, Subcommand
from .choosing import add_criteria, by_criteria, cut_note
from .job_texts import arguments_text, as_json, call_of, error_line, state_cell, when

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

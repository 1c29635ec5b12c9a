"""`skipqueue list`: print jobs as a table or as JSON.

Like `skipqueue show`, it masks secrets in arguments, errors and results, as in the admin. No text from a row can start
a new line or control the terminal.
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
from ..search import SearchWindow
from .options import add_criteria, by_criteria, cut_note, positive
from .subcommand import Exit, Watchable
from .terminal import BLUE, DIM, GREEN, RED, YELLOW, Coloured, Console

JOB_COLOURS = {
    Status.COMPLETED: GREEN,
    Status.DISCARDED: DIM,
    Status.FAILED: RED,
    Status.RUNNING: BLUE,
    RETRYING: YELLOW,
}


TIME_COLUMNS = ("run_after", "enqueued_at", "started_at", "finished_at")


def call_of(job: Job) -> Redacted:
    return redacted(job.task, job.args, job.kwargs)


def when(job: Job, now: datetime) -> str:
    """Format the time that matters for the job's state: `for 12m04s, 40 %`, `in 2h00m`, `4m10s ago`."""
    if job.status in FINISHED and job.finished_at:
        return f"{in_words((now - job.finished_at).total_seconds())} ago"
    if job.status == Status.RUNNING:
        started = job.started_at or job.locked_at or job.run_after
        if holder := holder_of(job):
            return held_since(holder, started, now)
        progress = job.current_progress
        progress_text = f", {progress.percent} %" if progress else ""
        return f"for {in_words((now - started).total_seconds())}{progress_text}"
    seconds = (job.run_after - now).total_seconds()
    if job.status == Status.BLOCKED and seconds <= 0:
        return f"for {in_words(-seconds)}"
    return f"in {in_words(seconds)}" if seconds > 0 else f"due {in_words(-seconds)} ago"


def passed_arguments(job: Job, masked_call: Redacted) -> list[tuple[str, Any]]:
    return [*named(job.task, masked_call.args), *masked_call.kwargs.items()]


def as_json(job: Job) -> dict[str, Any]:
    masked_call = call_of(job)
    return {
        "id": job.pk,
        "status": state_of(job),
        "queue": job.queue_name,
        "task": job.task,
        "args": masked_call.args,
        "kwargs": masked_call.kwargs,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        **{name: getattr(job, name) for name in TIME_COLUMNS},
        "worker": job.worker_name or None,
        "last_error": masked_call.text(job.last_error) or None,
    }


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


LIST_HEADINGS = ("id", "status", "queue", "task", "attempts", "when", "arguments and error")


class List(Watchable):
    name = "list"
    help = "List jobs: the newest jobs, or the jobs that match the options"
    json_help = "print a JSON object for each job"

    def add_arguments(self, parser: CommandParser) -> None:
        add_criteria(parser)
        parser.add_argument("--limit", type=positive, default=20, help="how many jobs to list (default: 20)")

    def run(self, console: Console, **options: Any) -> Exit:
        choice, limit = by_criteria(options), options["limit"]
        jobs: list[Any] = []
        cut_windows: list[SearchWindow] = []
        for part in choice.parts():
            jobs += part.jobs.annotate(now=Now())[: limit + 1 - len(jobs)]
            cut_windows += [part.cut_after] if part.cut_after else []
            if len(jobs) > limit:
                break
        if not jobs and not cut_windows:
            choice.explain_nothing()
        print_jobs(console, jobs[:limit], in_json=options["json"])
        if labels := choice.searched_by_index:
            console.say(f"All jobs of these tasks were searched, by an index: {labels}.")
        if len(jobs) > limit:
            console.say(f"There are more than {limit:,} jobs; --limit shows more.")
        elif cut_windows:
            console.say(f"{'' if jobs else 'No job found. '}{cut_note(cut_windows)}")
        elif not jobs:
            console.say("No job found.")
        return Exit.DONE if jobs else (Exit.PARTIAL if cut_windows else Exit.NEGATIVE)


def print_jobs(console: Console, jobs: list[Any], *, in_json: bool) -> None:
    """Print the jobs. Each job must have the database's time as `now`."""
    if in_json:
        for job in jobs:
            console.json(as_json(job))
    elif jobs:
        console.table(LIST_HEADINGS, map(_table_row, jobs), right=("id",))


def _table_row(job: Any) -> list[str]:
    masked_call, state, attempts = call_of(job), state_of(job), f"{job.attempts}/{job.max_attempts}"
    arguments = ", ".join(f"{name}={dumped(value)}" for name, value in passed_arguments(job, masked_call))
    # The last error of a completed job no longer matters.
    error = "" if job.status == Status.COMPLETED else masked_call.text(job.last_error).strip().partition("\n")[0]
    text = " · ".join(filter(None, [arguments, error]))
    cell = Coloured(state, JOB_COLOURS.get(state, ""))
    return [job.shown_id, cell, job.queue_name, job.task, attempts, when(job, job.now), text]

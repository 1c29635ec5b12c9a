"""`skipqueue list`: jobs in a table; and `skipqueue show`: all about some jobs, as their pages in the admin show it.

Both print text or JSON. Invariant: secrets in arguments, errors and results are masked in everything but the texts that
a task wrote itself, as in the admin. No text of the row can start a line of its own choice or control the terminal.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Now

from ...events.log_format import in_words, printable
from ...models import FINISHED, Job, Status
from ...values.notes import AttemptLog, logs_of
from ...values.records import worker_name
from ...values.redaction import Redacted
from ..arguments import masked, named, redacted
from ..durations import held_since, moment_of
from ..job_states import RETRYING, state_of
from ..operations import number_of_attempt, number_of_attempts, was_cancelled
from ..parts import consoles, holder_of
from ..queues_and_workers import Workforce
from ..search import Window
from ..waiting import why_it_waits
from .options import Choice, add_criteria, by_criteria, cut_note, job_id, positive
from .subcommand import Exit, Subcommand
from .terminal import BLUE, DIM, GREEN, RED, YELLOW, Coloured, Console, shown_time

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


def _passed(job: Job, call: Redacted) -> list[tuple[str, Any]]:
    return [*named(job.task, call.args), *call.kwargs.items()]


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
        parser.add_argument("--limit", type=positive, default=20, help="at most so many; default: 20")
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
        if len(found) > limit:
            console.say(f"There are more than {limit:,}; --limit shows more.")
        elif cut:
            console.say(f"{'' if found else 'No job found. '}{cut_note(cut)}")
        elif not found:
            console.say("No job found.")
        return Exit.DONE if found else Exit.PARTIAL if cut else Exit.NEGATIVE


def print_jobs(console: Console, jobs: list[Any], *, in_json: bool) -> None:
    """Print these jobs, which have the database's time as `now`."""
    if in_json:
        for job in jobs:
            console.json(as_json(job))
    elif jobs:
        console.table(HEADINGS, map(_row, jobs), right=("id",))


def _row(job: Any) -> list[str]:
    call, state, attempts = call_of(job), state_of(job), f"{job.attempts}/{job.max_attempts}"
    arguments = ", ".join(f"{name}={_dumped(value)}" for name, value in _passed(job, call))
    # a job that has completed has succeeded since its last error
    error = "" if job.status == Status.COMPLETED else call.text(job.last_error).strip().partition("\n")[0]
    text = " · ".join(filter(None, [arguments, error]))
    cell = Coloured(state, COLOURS.get(state, ""))
    return [job.shown_id, cell, job.queue_name, job.task, attempts, when(job, job.now), text]


LABEL_WIDTH = 14


def details_as_json(job: Any, workforce: Workforce) -> dict[str, Any]:
    """The fields that lists have, and all other fields. `job.now`: the time."""
    call, progress = call_of(job), job.current_progress
    return {
        **as_json(job),
        "timeout": job.timeout,
        "why_it_waits": why_it_waits(job, job.now, workforce) or None,
        **{name: getattr(job, name) for part in consoles() for name in part.job_columns},
        **{name: key and call.text(key) for name, key in _keys(job).items()},
        "result": masked(job.task, job.result),
        "metadata": masked(job.task, job.metadata),
        "progress": progress and {"value": progress.value, "text": call.text(progress.text), "at": progress.at},
        "logs": [
            {
                "attempt": log.attempt,
                "worker": log.worker,
                "dropped": log.dropped,
                "lines": [line._replace(message=call.text(line.message))._asdict() for line in log.lines],
            }
            for log in logs_of(job.logs)
        ],
        "errors": [_masked_texts(entry, call) for entry in job.errors],
        "operations": [_masked_texts(entry, call) for entry in job.operations or []],
    }


def lines_about(job: Any, workforce: Workforce) -> Iterator[str]:
    """Its fields, then its errors and the changes by operators, in the order of time. `job.now`: the time."""
    call = call_of(job)
    yield printable(f"Job {job.shown_id}: {job.task}")
    for label, values in _facts(job, call, workforce).items():
        for number, value in enumerate(values):
            yield f"{label if number == 0 else '':<{LABEL_WIDTH}}{printable(value)}"
    yield from _story(job, call)


def _facts(job: Any, call: Redacted, workforce: Workforce) -> dict[str, list[str]]:
    return {
        "status": [f"{state_of(job)}, {when(job, job.now)}", *_given(why_it_waits(job, job.now, workforce))],
        "queue": [f"{job.queue_name}, priority {job.priority}"],
        "attempts": [_attempts(job)],
        **{name.replace("_", " "): _times(getattr(job, name)) for name in TIMES},
        "progress": [call.text(job.current_progress.line)] if job.current_progress else [],
        "worker": _given(job.worker_name),
        **{label: _given(getattr(job, name)) for part in consoles() for name, label in part.job_columns.items()},
        "timeout": [] if job.timeout is None else [in_words(job.timeout)],
        **{name.replace("_", " "): _given(key and call.text(key)) for name, key in _keys(job).items()},
        "arguments": [f"{name} = {_dumped(value)}" for name, value in _passed(job, call)],
        "result": [] if job.result is None else [_dumped(masked(job.task, job.result))],
        "metadata": [_dumped(masked(job.task, job.metadata))] if job.metadata else [],
        "last error": _given(call.text(job.last_error)),
    }


def _story(job: Job, call: Redacted) -> Iterator[str]:
    events = [(entry, _attempt(entry, call, job)) for entry in _objects(job.errors)]
    events += [(entry, _operation(entry, call)) for entry in _objects(job.operations)]
    dated = [(at, lines) for entry, lines in events if (at := moment_of(entry.get("at")))]
    dated += [(log.started, _log(log, call, job)) for log in logs_of(job.logs) if log.started and log.lines]
    for at, (first, *others) in sorted(dated, key=itemgetter(0)):
        yield ""
        yield printable(f"{shown_time(at)}  {first}")
        yield from (f"    {printable(line)}" for line in others)


def _attempts(job: Job) -> str:
    """The number of attempts, of how many. A manual retry starts at 1 again; the attempts before it are named."""
    earlier = number_of_attempts(job) - job.attempts
    return f"{job.attempts} of {job.max_attempts}" + (f", {earlier} before the manual retry" if earlier else "")


def _attempt(entry: dict[str, Any], call: Redacted, job: Job) -> list[str]:
    took = entry.get("duration_ms")
    after = f" after {in_words(took / 1000)}" if isinstance(took, int | float) else ""
    worker = f" on {worker_name(entry['worker'])}" if isinstance(entry.get("worker"), str) else ""
    text = entry.get("traceback") or f"{entry.get('exception', '')}: {entry.get('message', '')}"
    ended_at = moment_of(entry.get("at"))
    number = number_of_attempt(job, entry.get("attempt"), ended_at) or ""
    end = "cancelled" if was_cancelled(job, ended_at) else "failed"
    return [f"attempt {number} {end}{after}{worker}", *call.text(str(text)).rstrip().splitlines()]


def _operation(entry: dict[str, Any], call: Redacted) -> list[str]:
    by = f" by {entry['by']}" if entry.get("by") else ""
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    times = f", {entry['times']} times in a row" if entry.get("times", 1) != 1 else ""
    return [call.text(f"{entry.get('verb', '')}{by}{times}{reason}")]


def _log(log: AttemptLog, call: Redacted, job: Job) -> list[str]:
    lines = [f"log of attempt {number_of_attempt(job, log.attempt, log.started)}"]
    if log.dropped:
        lines.append(f"… {log.dropped} earlier lines are not kept")
    for line in log.lines:
        at = f"{shown_time(line.at)} " if line.at else ""
        source = f" {line.logger}" if line.logger else ""
        first, *others = call.text(line.message).splitlines() or [""]
        lines += [f"{at}{line.level}{source} {first}", *(f"    {other}" for other in others)]
    return lines


def _objects(entries: Any) -> list[dict[str, Any]]:
    """The entries, without what another program may have written among them."""
    return [entry for entry in entries or [] if isinstance(entry, dict)]


def _masked_texts(entry: Any, call: Redacted) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {name: call.text(value) if isinstance(value, str) else value for name, value in entry.items()}


def _times(moment: datetime | None) -> list[str]:
    return [shown_time(moment)] if moment else []


def _keys(job: Job) -> dict[str, str | None]:
    return {name: getattr(job, name) for part in consoles() for name in part.job_keys}


def _given(value: Any) -> list[str]:
    return [str(value)] if value else []


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Show(Subcommand):
    """Prints each job: its fields, why it waits, the errors of its attempts, and the changes by operators."""

    name = "show"
    help = "Show jobs with their arguments, attempts and tracebacks"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="the ids of the jobs")
        parser.add_argument("--json", action="store_true", help="print a JSON object for each job")

    def run(self, console: Console, **options: Any) -> Exit:
        choice = Choice(ids=tuple(dict.fromkeys(options["ids"])))
        choice.require_known()
        jobs = [job for part in choice.parts() for job in part.jobs.annotate(now=Now())]
        workforce = Workforce.now()
        for number, job in enumerate(jobs):
            if options["json"]:
                console.json(details_as_json(job, workforce))
                continue
            if number:
                console.line()
            for line in lines_about(job, workforce):
                console.line(line)
        return Exit.DONE

"""`skipqueue show`: print everything that is known about some jobs, as text or JSON."""

from collections.abc import Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Now

from ...events.log_format import in_words, printable
from ...models import Job
from ...values.notes import AttemptLog, logs_of
from ...values.records import worker_name
from ...values.redaction import Redacted
from ..arguments import masked
from ..durations import moment_of
from ..job_states import state_of
from ..operations import number_of_attempt, number_of_attempts, operations_of, was_cancelled
from ..parts import consoles
from ..queues_and_workers import Workforce
from ..waiting import why_it_waits
from .list import TIME_COLUMNS, as_json, call_of, dumped, passed_arguments, when
from .options import Choice, job_id
from .subcommand import Exit, Watchable
from .terminal import Console, shown_time

LABEL_WIDTH = 14


def details_as_json(job: Any, workforce: Workforce) -> dict[str, Any]:
    """Return all fields of a job as JSON. `job.now` must be the database's time."""
    masked_call, progress = call_of(job), job.current_progress
    return {
        **as_json(job),
        "timeout": job.timeout,
        "why_it_waits": why_it_waits(job, job.now, workforce) or None,
        **{name: getattr(job, name) for part in consoles() for name in part.job_columns},
        **{name: key and masked_call.text(key) for name, key in _part_keys(job).items()},
        **{name: value for part in consoles() if part.export for name, value in part.export(job).items()},
        "result": masked(job.task, job.result),
        "metadata": masked(job.task, job.metadata),
        "progress": progress and {"value": progress.value, "text": masked_call.text(progress.text), "at": progress.at},
        "logs": [
            {
                "attempt": log.attempt,
                "worker": log.worker,
                "dropped": log.dropped,
                "lines": [line._replace(message=masked_call.text(line.message))._asdict() for line in log.lines],
            }
            for log in logs_of(job.logs)
        ],
        "errors": [_masked_texts(entry, masked_call) for entry in job.errors],
        "operations": [_masked_texts(entry, masked_call) for entry in job.operations or []],
    }


def lines_about(job: Any, workforce: Workforce) -> Iterator[str]:
    """Yield a job's fields as text, then its errors, logs and operations by time. `job.now`: the database's time."""
    masked_call = call_of(job)
    yield printable(f"Job {job.shown_id}: {job.task}")
    for label, values in _facts(job, masked_call, workforce).items():
        for line_number, value in enumerate(values):
            yield f"{label if line_number == 0 else '':<{LABEL_WIDTH}}{printable(value)}"
    for part in consoles():
        yield from map(printable, part.lines_about(job) if part.lines_about else ())
    yield from _history_lines(job, masked_call)


def _facts(job: Any, masked_call: Redacted, workforce: Workforce) -> dict[str, list[str]]:
    return {
        "status": [f"{state_of(job)}, {when(job, job.now)}", *_as_list(why_it_waits(job, job.now, workforce))],
        "queue": [f"{job.queue_name}, priority {job.priority}"],
        "attempts": [_attempts(job)],
        **{name.replace("_", " "): _time_as_list(getattr(job, name)) for name in TIME_COLUMNS},
        "progress": [masked_call.text(job.current_progress.line)] if job.current_progress else [],
        "worker": _as_list(job.worker_name),
        **{label: _as_list(getattr(job, name)) for part in consoles() for name, label in part.job_columns.items()},
        "timeout": [] if job.timeout is None else [in_words(job.timeout)],
        **{name.replace("_", " "): _as_list(key and masked_call.text(key)) for name, key in _part_keys(job).items()},
        "arguments": [f"{name} = {dumped(value)}" for name, value in passed_arguments(job, masked_call)],
        "result": [] if job.result is None else [dumped(masked(job.task, job.result))],
        "metadata": [dumped(masked(job.task, job.metadata))] if job.metadata else [],
        "last error": _as_list(masked_call.text(job.last_error)),
    }


def _history_lines(job: Job, masked_call: Redacted) -> Iterator[str]:
    events = [(entry, _attempt_lines(entry, masked_call, job)) for entry in _objects(job.errors)]
    events += [(entry, _operation_lines(entry, masked_call)) for entry in _objects(job.operations)]
    dated_lines = [(at, lines) for entry, lines in events if (at := moment_of(entry.get("at")))]
    dated_lines += [
        (log.started, _log_lines(log, masked_call, job)) for log in logs_of(job.logs) if log.started and log.lines
    ]
    for at, (first, *other_lines) in sorted(dated_lines, key=itemgetter(0)):
        yield ""
        yield printable(f"{shown_time(at)}  {first}")
        yield from (f"    {printable(line)}" for line in other_lines)


def _attempts(job: Job) -> str:
    """Format the attempts and their maximum: `2 of 10`. Attempts before a manual retry are added separately."""
    earlier = number_of_attempts(job) - job.attempts
    before = (
        "before the manual retry" if any(operation.verb == "retry" for operation in operations_of(job)) else "before"
    )
    return f"{job.attempts} of {job.max_attempts}" + (f", {earlier} {before}" if earlier else "")


def _attempt_lines(entry: dict[str, Any], masked_call: Redacted, job: Job) -> list[str]:
    milliseconds = entry.get("duration_ms")
    duration_text = f" after {in_words(milliseconds / 1000)}" if isinstance(milliseconds, int | float) else ""
    worker = f" on {worker_name(entry['worker'])}" if isinstance(entry.get("worker"), str) else ""
    text = entry.get("traceback") or f"{entry.get('exception', '')}: {entry.get('message', '')}"
    ended_at = moment_of(entry.get("at"))
    number = number_of_attempt(job, entry.get("attempt"), ended_at) or ""
    end = "cancelled" if was_cancelled(job, ended_at) else "failed"
    return [f"attempt {number} {end}{duration_text}{worker}", *masked_call.text(str(text)).rstrip().splitlines()]


def _operation_lines(entry: dict[str, Any], masked_call: Redacted) -> list[str]:
    by_text = f" by {entry['by']}" if entry.get("by") else ""
    reason_text = f": {entry['reason']}" if entry.get("reason") else ""
    times_text = f", {entry['times']} times in a row" if entry.get("times", 1) != 1 else ""
    return [masked_call.text(f"{entry.get('verb', '')}{by_text}{times_text}{reason_text}")]


def _log_lines(log: AttemptLog, masked_call: Redacted, job: Job) -> list[str]:
    lines = [f"log of attempt {number_of_attempt(job, log.attempt, log.started)}"]
    if log.dropped:
        lines.append(f"… {log.dropped} earlier lines were not kept")
    for line in log.lines:
        time_text = f"{shown_time(line.at)} " if line.at else ""
        source = f" {line.logger}" if line.logger else ""
        first, *other_lines = masked_call.text(line.message).splitlines() or [""]
        lines += [f"{time_text}{line.level}{source} {first}", *(f"    {other_line}" for other_line in other_lines)]
    return lines


def _objects(entries: Any) -> list[dict[str, Any]]:
    """Return the entries that are objects, because another program may have written other values."""
    return [entry for entry in entries or [] if isinstance(entry, dict)]


def _masked_texts(entry: Any, masked_call: Redacted) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {name: masked_call.text(value) if isinstance(value, str) else value for name, value in entry.items()}


def _time_as_list(moment: datetime | None) -> list[str]:
    return [shown_time(moment)] if moment else []


def _part_keys(job: Job) -> dict[str, str | None]:
    return {name: getattr(job, name) for part in consoles() for name in part.job_keys}


def _as_list(value: Any) -> list[str]:
    return [str(value)] if value else []


class Show(Watchable):
    """Prints each job: its fields, why it waits, the errors of its attempts, and what operators did."""

    name = "show"
    help = "Show jobs with their arguments, attempts and tracebacks"
    json_help = "print a JSON object for each job"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="the ids of the jobs")

    def run(self, console: Console, **options: Any) -> Exit:
        choice = Choice(ids=tuple(dict.fromkeys(options["ids"])))
        choice.require_known()
        jobs = [job for part in choice.parts() for job in part.jobs.annotate(now=Now())]
        workforce = Workforce.now()
        for position, job in enumerate(jobs):
            if options["json"]:
                console.json(details_as_json(job, workforce))
                continue
            if position:
                console.line()
            for line in lines_about(job, workforce):
                console.line(line)
        return Exit.DONE

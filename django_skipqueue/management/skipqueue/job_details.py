"""All about one job, as lines of text and as JSON.

Invariant: secrets are masked in everything but the texts that a task wrote itself, as in the admin. No text of the row
can start a line of its own choice or control the terminal.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from ...events.log_format import in_words, printable
from ...models import Job
from ...operators.arguments import named
from ...operators.job_states import state_of
from ...operators.json_time import moment_of
from ...values.notes import AttemptLog, logs_of
from ...values.records import worker_name
from ...values.redaction import Redacted
from ..terminal.console import shown_time
from .job_texts import TIMES, as_json, call_of, masked, when

LABEL_WIDTH = 14


def details_as_json(job: Job) -> dict[str, Any]:
    """The fields of lists, and the others."""
    call = call_of(job)
    return {
        **as_json(job),
        "timeout": job.timeout,
        "unique_key": job.unique_key and call.text(job.unique_key),
        "result": masked(job, job.result),
        "metadata": masked(job, job.metadata),
        "progress": _progress_as_json(job, call),
        "logs": [_log_as_json(log, call) for log in logs_of(job.logs)],
        "errors": [_masked_texts(entry, call) for entry in job.errors],
        "operations": [_masked_texts(entry, call) for entry in job.operations or []],
    }


def lines_about(job: Any) -> Iterator[str]:
    """Its fields, then its errors and the changes by operators, in the order of time. `job.now`: the time."""
    call = call_of(job)
    yield printable(f"Job {job.pk}: {job.task}")
    for label, values in _facts(job, call):
        for number, value in enumerate(values):
            yield f"{label if number == 0 else '':<{LABEL_WIDTH}}{printable(value)}"
    yield from _story(job, call)


def _facts(job: Any, call: Redacted) -> Iterator[tuple[str, list[str]]]:
    """Labels, and the lines beside each; those without a value are left out."""
    passed = [*named(job.task, call.args), *call.kwargs.items()]
    facts = {
        "status": [f"{state_of(job)}, {when(job, job.now)}"],
        "queue": [f"{job.queue_name}, priority {job.priority}"],
        "attempts": [f"{job.attempts} of {job.max_attempts}"],
        **{name.replace("_", " "): _times(getattr(job, name)) for name in TIMES},
        "progress": [call.text(job.current_progress.line)] if job.current_progress else [],
        "worker": [job.worker_name] if job.worker_name else [],
        "timeout": [] if job.timeout is None else [in_words(job.timeout)],
        "unique key": [call.text(job.unique_key)] if job.unique_key else [],
        "arguments": [f"{name} = {_dumped(value)}" for name, value in passed],
        "result": [] if job.result is None else [_dumped(masked(job, job.result))],
        "metadata": [_dumped(masked(job, job.metadata))] if job.metadata else [],
        "last error": [call.text(job.last_error)] if job.last_error else [],
    }
    yield from ((label, lines) for label, lines in facts.items() if lines)


def _story(job: Job, call: Redacted) -> Iterator[str]:
    """The logs and the errors of attempts, and the changes by operators, the oldest first."""
    events = [(entry, _attempt(entry, call)) for entry in _objects(job.errors)]
    events += [(entry, _operation(entry, call)) for entry in _objects(job.operations)]
    dated = [(at, lines) for entry, lines in events if (at := moment_of(entry.get("at")))]
    dated += [(log.started, _log(log, call)) for log in logs_of(job.logs) if log.started and log.lines]
    for at, (first, *others) in sorted(dated, key=itemgetter(0)):
        yield ""
        yield printable(f"{shown_time(at)}  {first}")
        yield from (f"    {printable(line)}" for line in others)


def _attempt(entry: dict[str, Any], call: Redacted) -> list[str]:
    took = entry.get("duration_ms")
    after = f" after {in_words(took / 1000)}" if isinstance(took, int | float) else ""
    worker = f" on {worker_name(entry['worker'])}" if isinstance(entry.get("worker"), str) else ""
    text = entry.get("traceback") or f"{entry.get('exception', '')}: {entry.get('message', '')}"
    return [f"attempt {entry.get('attempt', '')} failed{after}{worker}", *call.text(str(text)).rstrip().splitlines()]


def _operation(entry: dict[str, Any], call: Redacted) -> list[str]:
    by = f" by {entry['by']}" if entry.get("by") else ""
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    times = f", {entry['times']} times in a row" if entry.get("times", 1) != 1 else ""
    return [call.text(f"{entry.get('verb', '')}{by}{times}{reason}")]


def _log(log: AttemptLog, call: Redacted) -> list[str]:
    lines = [f"log of attempt {log.attempt}"]
    if log.dropped:
        lines.append(f"… {log.dropped} earlier lines are not kept")
    for line in log.lines:
        at = f"{shown_time(line.at)} " if line.at else ""
        source = f" {line.logger}" if line.logger else ""
        first, *others = call.text(line.message).splitlines() or [""]
        lines += [f"{at}{line.level}{source} {first}", *(f"    {other}" for other in others)]
    return lines


def _log_as_json(log: AttemptLog, call: Redacted) -> dict[str, Any]:
    lines = [line._replace(message=call.text(line.message))._asdict() for line in log.lines]
    return {"attempt": log.attempt, "worker": log.worker, "dropped": log.dropped, "lines": lines}


def _progress_as_json(job: Job, call: Redacted) -> dict[str, Any] | None:
    progress = job.current_progress
    return progress and {"value": progress.value, "text": call.text(progress.text), "at": progress.at}


def _objects(entries: Any) -> list[dict[str, Any]]:
    """The entries, without what another program may have written among them."""
    return [entry for entry in entries or [] if isinstance(entry, dict)]


def _masked_texts(entry: Any, call: Redacted) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {name: call.text(value) if isinstance(value, str) else value for name, value in entry.items()}


def _times(moment: datetime | None) -> list[str]:
    return [shown_time(moment)] if moment else []


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

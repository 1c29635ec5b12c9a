"""A job as text and as JSON.

Invariant: secrets in arguments, errors and results are masked, as in the admin.
"""

import json
from datetime import datetime
from typing import Any

from ...carriers.words import carrier_with, with_carrier
from ...events.log_format import in_words
from ...models import FINISHED, Job, Status
from ...operators.arguments import named, redacted
from ...operators.job_states import RETRYING, state_of
from ...values.redaction import Redacted
from ..terminal.tables import BLUE, DIM, GREEN, RED, YELLOW, Coloured

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
        if carrier := carrier_with(job):
            return with_carrier(carrier, started, now)
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

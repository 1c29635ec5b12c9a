"""The log lines about jobs, queues and workers. A line begins with the name of an event; then come `key=value` pairs.

The classes in `events.events` write their log lines by the functions whose names begin with `write`. The other
functions each write one particular line, for which there is no event class. `extra` has the numbers, for log
processors. Every record has the attributes event, job_id, worker_id, worker_name and queue_name. If several databases
hold queues, the field database and the text name the database. No line contains an argument of a job, and no value can
start a new line.
"""

import logging
from collections.abc import Mapping
from typing import Any

from ..values.outcomes import Outcome
from ..values.records import Attempt, ClaimedJob, RecoveredJob
from ..values.redaction import MASK
from ..values.tracebacks import innermost_calls, stand_in
from . import log_context
from .log_format import in_a_line, in_words, pairs, printable

logger = logging.getLogger("django_skipqueue.worker")

STUCK_CALLS = 6
"""The number of innermost calls of a stuck attempt that are logged. The job's row has the whole stack."""

RUNNING_SHOWN = 5
"""The number of attempts in a blocked event loop that are logged, the longest first."""


def write(
    level: int,
    event: str,
    shown: dict[str, Any],
    *,
    extra: dict[str, Any] | None = None,
    error: BaseException | None = None,
    traceback: str | None = None,
) -> None:
    """Write a line with the event's name, its underscores replaced by spaces, and the values of `shown` as key=value.

    error: becomes the record's `exc_info`, which error trackers read.
    traceback: the traceback as text, with masked secrets. If it is `None`, the formatter formats the traceback of
    `error`.
    """
    if not logger.isEnabledFor(level):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    database = log_context.named_database()
    shown = database | shown
    record = logger.makeRecord(
        logger.name,
        level,
        path,
        line,
        f"{event.replace('_', ' ')} %s" if shown else event.replace("_", " "),
        (pairs(shown),) if shown else (),
        None if error is None else (type(error), error, error.__traceback__),
        function,
        _extra(event, **(database | (extra or {}))),
    )
    record.exc_text = traceback  # a formatter uses this text instead of formatting exc_info
    logger.handle(record)


def _extra(event: str, **attributes: Any) -> dict[str, Any]:
    """Return the attributes that every record has, updated with `attributes`."""
    return {"event": event, "job_id": None, "queue_name": None, **log_context.worker, **attributes}


def write_about_worker(level: int, event: str, worker: str, error: BaseException | None = None, **shown: Any) -> None:
    write(level, event, {"worker": worker, **shown}, extra={"worker_name": worker}, error=error)


def write_about_queue(event: str, queue_name: str, *, level: int = logging.WARNING, **shown: Any) -> None:
    """Write a line about one queue, and leave out empty values."""
    not_empty = {name: value for name, value in shown.items() if value}
    write(level, event, {"queue": queue_name, **not_empty}, extra={"queue_name": queue_name})


def write_about_attempt(level: int, event: str, attempt: Attempt, **further_values: Any) -> None:
    """Write a line about an attempt that has ended, with its outcome's error, and with further values to show."""
    outcome = attempt.outcome
    shown = _attempt_shown(attempt) | further_values
    if outcome.last_error:
        shown["error"] = outcome.last_error
    write(level, event, shown, extra=_attempt_extra(attempt), **_error_arguments(outcome))


def job_extra(job: ClaimedJob | RecoveredJob) -> dict[str, Any]:
    """The attributes of a record about an attempt of this job."""
    return {"job_id": job.id, "task": job.task, "queue_name": job.queue_name, "attempt": job.attempt}


def number_of(job: ClaimedJob) -> str:
    """The number of the attempt, and the maximum for the job: `1/3`."""
    return f"{job.attempt}/{job.max_attempts}"


def _attempt_shown(attempt: Attempt) -> dict[str, Any]:
    return {
        "task": attempt.job.task,
        "id": attempt.job.id,
        "attempt": number_of(attempt.job),
        "ran": in_words(attempt.duration_ms / 1000),
        "waited": in_words(attempt.wait_ms / 1000),
    }


def _attempt_extra(attempt: Attempt) -> dict[str, Any]:
    measurements = {"wait_ms": attempt.wait_ms, "worker_name": attempt.worker, "duration_ms": attempt.duration_ms}
    return job_extra(attempt.job) | measurements


def _error_arguments(outcome: Outcome) -> dict[str, Any]:
    """The arguments `error` and `traceback` for `write`, without secrets. Empty if the outcome has no exception."""
    if outcome.exception is None or outcome.error is None:
        return {}
    message, traceback = outcome.error["message"], outcome.error["traceback"]
    is_secret = MASK in message or MASK in traceback
    return {"error": stand_in(outcome.exception, message) if is_secret else outcome.exception, "traceback": traceback}


# Log lines without an event class


def raised_after_completion(job: ClaimedJob, outcome: Outcome) -> None:
    shown = {"task": job.task, "id": job.id, "error": outcome.last_error or outcome.status}
    write(logging.ERROR, "job_raised_after_completion", shown, extra=job_extra(job), **_error_arguments(outcome))


def backoff_failed(job: ClaimedJob, outcome: Outcome) -> None:
    """The backoff function of the task failed to return a delay, so the default backoff decided this outcome."""
    shown = {"task": job.task, "id": job.id, "error": outcome.last_error}
    write(logging.ERROR, "backoff_failed", shown, extra=job_extra(job))


def starting(lines: list[str]) -> None:
    for line in lines:
        logger.info("%s", printable(line), extra=_extra("supervisor_starting"))


def unknown_queue(queue_name: str, known: list[str]) -> None:
    shown = {"queue": queue_name, "hint": "no task and no unfinished job has this queue", "known": ", ".join(known)}
    write(logging.WARNING, "queue_unknown", shown, extra={"queue_name": queue_name})


def log_format_ignored(log_format: str) -> None:
    hint = "LOGGING configures these lines; use django_skipqueue.events.logging.JsonFormatter there"
    write(logging.WARNING, "log_format_ignored", {"log_format": log_format, "hint": hint})


def reloading(changed: str, grace: float | None) -> None:
    """Code has changed, so the worker reloads. `grace`: how many seconds running jobs get; `None` if no worker runs."""
    hint = {} if grace is None else {"hint": f"jobs that still run in {in_words(grace)} are released"}
    write(logging.INFO, "worker_reloading", {"changed": changed, **hint})


def waiting_for_change(code: int) -> None:
    """The worker could not start with the changed code. It is started again after the next change."""
    hint = "waiting for the next change; the reason is above"
    write(logging.ERROR, "worker_not_reloaded", {"exit_code": code, "hint": hint})


def running_released(worker: str, count: int) -> None:
    """Jobs were released that still ran when their worker had to end, after the shutdown timeout or a second signal."""
    reason = "they still ran when the worker had to end; no attempt was charged"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


def orphans_released(worker: str, count: int) -> None:
    reason = "the answer to their claim was lost"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


def blocked(worker: str, lines: list[str]) -> None:
    """Code left behind by a finished `async def` task blocks other jobs. `lines`: the stack of each blocked thread."""
    reason = "code left behind by a job blocks its event loop, or the thread of its queries; it is replaced"
    write_about_worker(logging.ERROR, "worker_blocked", worker, reason=reason)
    for line in lines:
        write_about_worker(logging.ERROR, "worker_blocked", worker, thread=line)


def event_loop_blocked(worker: str, running: Mapping[str, float], stack: str, released: int) -> None:
    """An `async def` task blocks the event loop, so the jobs that waited for the loop were released.

    running: for how many seconds each attempt in the loop has run, by task and job id.
    stack: the stack of the event loop's thread.
    """
    longest_first = sorted(running, key=lambda name: -running[name])
    running_texts = [f"{name} for {in_words(running[name])}" for name in longest_first[:RUNNING_SHOWN]]
    if len(longest_first) > RUNNING_SHOWN:
        running_texts.append(f"{len(longest_first) - RUNNING_SHOWN} more")
    calls = innermost_calls(stack, STUCK_CALLS)
    attempts = ", ".join(running_texts)
    write_about_worker(logging.WARNING, "event_loop_blocked", worker, released=released, running=attempts, stack=calls)


def stuck(attempt: Attempt, error: str, stack: str) -> None:
    """An attempt did not end when it was interrupted, so another thread or coroutine takes its slot."""
    calls = innermost_calls(stack, STUCK_CALLS)
    shown = _attempt_shown(attempt) | {"worker": attempt.worker, "error": error, "stack": calls}
    write(logging.ERROR, "job_stuck", shown, extra=_attempt_extra(attempt))


def thread_replaced(attempt: Attempt, error: BaseException) -> None:
    """The thread that ran an attempt could not be cleaned up afterwards, and was replaced."""
    job = attempt.job
    shown = {"worker": attempt.worker, "task": job.task, "id": job.id, "reason": repr(error)}
    write(logging.ERROR, "thread_replaced", shown, extra=_attempt_extra(attempt), error=error)


def not_pruned(job_id: int, error: BaseException, retry_in: float) -> None:
    shown = {"id": job_id, "error": in_a_line(error), "retry_in": in_words(retry_in)}
    write(logging.WARNING, "job_not_pruned", shown, extra={"job_id": job_id})


def rows_locked(worker: str, job_id: int, count: int) -> None:
    """Outcomes wait, because another transaction has locked the rows of their jobs. `job_id`: the first job's id."""
    reason = "somebody has the rows locked"
    write_about_worker(logging.WARNING, "outcomes_waiting", worker, count=count, first_id=job_id, reason=reason)


def outcome_slow(job: ClaimedJob, outcome: Outcome, retry_in: float) -> None:
    """PostgreSQL did not write this outcome in time, although the statement wrote no other outcome."""
    shown = {"task": job.task, "id": job.id, "status": outcome.status, "retry_in": in_words(retry_in)}
    write(logging.ERROR, "outcome_slow", shown, extra={"job_id": job.id, "queue_name": job.queue_name})


def job_not_claimed(job_id: int, queue_name: str) -> None:
    shown = {"id": job_id, "queue": queue_name}
    write(logging.ERROR, "job_not_claimed", shown, extra={"job_id": job_id, "queue_name": queue_name})

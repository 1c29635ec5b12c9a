"""Every log line of the queue: an event, then `key=value`. Nothing else writes one.

Those about events are written by `log_sink`, the others by whoever has something to say. Lines say nothing about
arguments, and no value in them can forge a line of its own. `extra` carries the figures for log processors, and five
names in every record: event, job_id, worker_id, worker_name, queue_name.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..values.outcomes import Outcome
from ..values.records import Attempt, ClaimedJob, RecoveredJob, worker_name
from ..values.redaction import MASK
from ..values.tracebacks import stand_in
from .log_format import in_a_line, in_words, pairs, printable

logger = logging.getLogger("django_skipqueue.worker")

STUCK_LINES = 12
"""Lines of its stack, two a call, that are logged of a stuck attempt; the row has all."""

LARGE_BATCH = 50
"""Jobs completed in one round trip above which they share a line."""

_process: dict[str, Any] = {"worker_id": None, "worker_name": None}
"""The worker that this process is; `None` in a supervisor, and wherever no worker runs."""


def identify(worker_id: str, worker_name: str) -> None:
    """Name the worker that this process is, for all its records."""
    _process.update(worker_id=worker_id, worker_name=worker_name)


def write(
    level: int,
    event: str,
    shown: dict[str, Any],
    *,
    extra: dict[str, Any] | None = None,
    error: BaseException | None = None,
    traceback: str | None = None,
) -> None:
    """Write `event`, with spaces, and `shown` as key=value.

    error: becomes the record's `exc_info`, for error trackers. traceback: its text where it is not to be formatted from
    the exception, since arguments that are secret are masked in it.
    """
    if not logger.isEnabledFor(level):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(
        logger.name,
        level,
        path,
        line,
        f"{event.replace('_', ' ')} %s" if shown else event.replace("_", " "),
        (pairs(shown),) if shown else (),
        None if error is None else (type(error), error, error.__traceback__),
        function,
        _extra(event, **(extra or {})),
    )
    record.exc_text = traceback  # a formatter takes it in the place of one that it makes of exc_info
    logger.handle(record)


def _extra(event: str, **known: Any) -> dict[str, Any]:
    """The five names that every record has, and what else is known."""
    return {"event": event, "job_id": None, "queue_name": None, **_process, **known}


# Events of jobs


def job_started(job: ClaimedJob, worker: str, wait_ms: float) -> None:
    """An attempt begins."""
    shown = {"task": job.task, "id": job.id, "attempt": _of_all(job), "waited": in_words(wait_ms / 1000)}
    write(logging.DEBUG, "job_started", shown, extra=_job_extra(job, worker, wait_ms))


def completed(attempts: Sequence[Attempt]) -> None:
    """A line for each completed job; for a large batch one line, unless debug lines are wanted.

    Under load a line for each job would take twice the time of running it, and nobody could read them.
    """
    if len(attempts) <= LARGE_BATCH or logger.isEnabledFor(logging.DEBUG):
        for attempt in attempts:
            _ended(logging.INFO, "job_completed", attempt)
        return
    by_task = Counter(attempt.job.task for attempt in attempts)
    tasks = ", ".join(f"{count:,} {task}" for task, count in by_task.most_common(5))
    write(logging.INFO, "jobs_completed", {"count": len(attempts), "tasks": tasks}, extra={"jobs": len(attempts)})


def job_retrying(attempt: Attempt) -> None:
    """The job will run again."""
    level = logging.WARNING if attempt.outcome.last_error else logging.INFO
    _ended(level, "job_retrying", attempt, retry_in=in_words(attempt.outcome.delay))


def job_failed(attempt: Attempt) -> None:
    """It was the last attempt of its job."""
    _ended(logging.ERROR, "job_failed", attempt)


def job_discarded(attempt: Attempt) -> None:
    """The task has discarded its job."""
    _ended(logging.WARNING, "job_discarded", attempt)


def job_cancelled(attempt: Attempt) -> None:
    """The job was cancelled while it ran."""
    _ended(logging.INFO, "job_cancelled", attempt)


def lease_lost(attempt: Attempt) -> None:
    """Its outcome came too late."""
    _ended(logging.WARNING, "lease_lost", attempt, not_written=attempt.outcome.status)


def job_recovered(job: RecoveredJob) -> None:
    """A job was taken back from a worker that is gone."""
    name = worker_name(job.locked_by)
    shown = {
        "task": job.task,
        "id": job.id,
        "attempt": job.attempt,
        "worker": name,
        "claimed": _short(job.locked_at),
        "now": job.status,
    }
    extra = {
        "job_id": job.id,
        "task": job.task,
        "queue_name": job.queue_name,
        "attempt": job.attempt,
        "worker_id": job.locked_by,
        "worker_name": name,
    }
    write(logging.ERROR if job.status == "failed" else logging.WARNING, "job_recovered", shown, extra=extra)


def raised_after_completion(job: ClaimedJob, outcome: Outcome) -> None:
    """A task came to this outcome after it had committed its job's completion itself."""
    shown = {"task": job.task, "id": job.id, "error": outcome.last_error or outcome.status}
    extra = {"job_id": job.id, "task": job.task, "queue_name": job.queue_name, "attempt": job.attempt}
    write(logging.ERROR, "job_raised_after_completion", shown, extra=extra, **_error(outcome))


def _ended(level: int, event: str, attempt: Attempt, **more: Any) -> None:
    outcome = attempt.outcome
    shown = _attempt_shown(attempt) | more
    if outcome.last_error:
        shown["error"] = outcome.last_error
    write(level, event, shown, extra=_attempt_extra(attempt), **_error(outcome))


def _attempt_shown(attempt: Attempt) -> dict[str, Any]:
    return {
        "task": attempt.job.task,
        "id": attempt.job.id,
        "attempt": _of_all(attempt.job),
        "ran": in_words(attempt.duration_ms / 1000),
        "waited": in_words(attempt.wait_ms / 1000),
    }


def _attempt_extra(attempt: Attempt) -> dict[str, Any]:
    return _job_extra(attempt.job, attempt.worker, attempt.wait_ms) | {"duration_ms": attempt.duration_ms}


def _error(outcome: Outcome) -> dict[str, Any]:
    if outcome.exception is None or outcome.error is None:
        return {}
    message, traceback = outcome.error["message"], outcome.error["traceback"]
    is_secret = MASK in message or MASK in traceback
    return {"error": stand_in(outcome.exception, message) if is_secret else outcome.exception, "traceback": traceback}


def _of_all(job: ClaimedJob) -> str:
    return f"{job.attempt}/{job.max_attempts}"


def _short(moment: datetime) -> str:
    """The time of day, as the lines themselves have it; with its date if that is another one."""
    local = moment.astimezone()
    return f"{local:%H:%M:%S}" if local.date() == datetime.now().astimezone().date() else f"{local:%Y-%m-%d %H:%M:%S}"


def _job_extra(job: ClaimedJob, worker: str, wait_ms: float) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "task": job.task,
        "queue_name": job.queue_name,
        "attempt": job.attempt,
        "wait_ms": wait_ms,
        "worker_name": worker,
    }


# Events of workers


def worker_started(worker: str, worker_id: str) -> None:
    """A worker process is about to claim its first job."""
    extra = {"worker_id": worker_id, "worker_name": worker}
    write(logging.INFO, "worker_started", {"worker": worker}, extra=extra)


def worker_stopped(worker: str, worker_id: str, jobs_done: int) -> None:
    """A worker process ends."""
    extra = {"worker_id": worker_id, "worker_name": worker}
    write(logging.INFO, "worker_stopped", {"worker": worker, "attempts": jobs_done}, extra=extra)


# What is no event


def write_about_worker(level: int, event: str, worker: str, error: BaseException | None = None, **shown: Any) -> None:
    """The same about one worker."""
    write(level, event, {"worker": worker, **shown}, extra={"worker_name": worker}, error=error)


def starting(lines: list[str]) -> None:
    """What the supervisor says about itself before its first worker starts."""
    for line in lines:
        logger.info("%s", printable(line), extra=_extra("supervisor_starting"))


def unknown_queue(queue_name: str, known: list[str]) -> None:
    """A worker is to serve a queue that nothing uses."""
    shown = {"queue": queue_name, "hint": "no task and no job has this queue", "known": ", ".join(known)}
    write(logging.WARNING, "queue_unknown", shown, extra={"queue_name": queue_name})


def reloading(changed: str, grace: float | None) -> None:
    """Code has changed. `grace`: the seconds that running jobs have; `None`: no worker runs."""
    hint = {} if grace is None else {"hint": f"what still runs in {in_words(grace)} is given back"}
    write(logging.INFO, "worker_reloading", {"changed": changed, **hint})


def waiting_for_change(code: int) -> None:
    """Changed code could not be run; the next change is another chance."""
    hint = "waiting for the next change; the reason is above"
    write(logging.ERROR, "worker_not_reloaded", {"exit_code": code, "hint": hint})


def running_released(worker: str, count: int) -> None:
    """Jobs were still running when the time to shut down was over."""
    reason = "they still ran when the time to stop was over; no attempt was charged"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


def orphans_released(worker: str, count: int) -> None:
    """A worker released jobs that it had claimed when its connection broke, before PostgreSQL's answer came."""
    reason = "the answer to their claim was lost"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


def blocked(worker: str, lines: list[str]) -> None:
    """Code left by a finished `async def` task keeps others from running. The lines say where the threads are."""
    reason = "what no job waits for any more blocks its event loop, or the thread of its queries; it is replaced"
    write_about_worker(logging.ERROR, "worker_blocked", worker, reason=reason)
    for line in lines:
        write_about_worker(logging.ERROR, "worker_blocked", worker, thread=line)


def stuck(attempt: Attempt, error: str, stack: str) -> None:
    """An attempt did not end when it was told to; another thread or coroutine takes its place."""
    last_calls = " > ".join(line.strip() for line in stack.splitlines()[-STUCK_LINES:])
    shown = _attempt_shown(attempt) | {"worker": attempt.worker, "error": error, "stack": last_calls}
    write(logging.ERROR, "job_stuck", shown, extra=_attempt_extra(attempt))


def thread_replaced(attempt: Attempt, error: BaseException) -> None:
    """What a task has left in its thread cannot be tidied away."""
    job = attempt.job
    shown = {"worker": attempt.worker, "task": job.task, "id": job.id, "reason": repr(error)}
    write(logging.ERROR, "thread_replaced", shown, extra=_attempt_extra(attempt), error=error)


def not_pruned(job_id: int, error: BaseException, retry_in: float) -> None:
    """A finished job cannot be deleted, and is left alone for a while."""
    shown = {"id": job_id, "error": in_a_line(error), "retry_in": in_words(retry_in)}
    write(logging.WARNING, "job_not_pruned", shown, extra={"job_id": job_id})


def outcome_refused(job_id: int, error: BaseException) -> None:
    """PostgreSQL takes no outcome at all for this row, which somebody has written by hand."""
    shown = {"id": job_id, "error": in_a_line(error), "hint": "its row cannot be updated; fix or delete it"}
    write(logging.ERROR, "outcome_refused", shown, extra={"job_id": job_id})


def rows_locked(worker: str, job_id: int, count: int) -> None:
    """Outcomes cannot be written yet. The id is that of the first."""
    reason = "somebody has the rows locked"
    write_about_worker(logging.WARNING, "outcomes_waiting", worker, count=count, first_id=job_id, reason=reason)


def outcome_slow(job: ClaimedJob, outcome: Outcome, retry_in: float) -> None:
    """PostgreSQL did not write this outcome in time, though it was sent alone."""
    shown = {"task": job.task, "id": job.id, "status": outcome.status, "retry_in": in_words(retry_in)}
    write(logging.ERROR, "outcome_slow", shown, extra={"job_id": job.id, "queue_name": job.queue_name})


def job_not_claimed(job_id: int, queue_name: str) -> None:
    """PostgreSQL did not hand out this job in time, though it was asked for alone."""
    shown = {"id": job_id, "queue": queue_name}
    write(logging.ERROR, "job_not_claimed", shown, extra={"job_id": job_id, "queue_name": queue_name})


def notify_failed(queue_name: str, error: BaseException) -> None:
    """Workers were not woken; they find the job when they poll."""
    shown = {"queue": queue_name, "error": repr(error)}
    write(logging.WARNING, "notify_failed", shown, extra={"queue_name": queue_name})


def jobs_due(count: int) -> None:
    """Scheduled jobs became due."""
    write(logging.DEBUG, "jobs_due", {"count": count})


def jobs_pruned(counts: Mapping[str, int]) -> None:
    """Finished jobs were deleted."""
    write(logging.DEBUG, "jobs_pruned", dict(counts))

"""Every log line of the queue, and nothing else formats one.

Events become lines through signal receivers; what is no event (a lost connection, a restarted worker) has a function
here. Lines say nothing about arguments, and no name in them can forge a line of its own. `extra` carries the figures
for log processors.
"""

import functools
import logging
import sys
from collections import Counter
from typing import Any

from django.dispatch import Signal

from . import signals
from .records import Attempt, ClaimedJob, RecoveredJob

logger = logging.getLogger("django_skipqueue.worker")

LARGE_BATCH = 50
"""Jobs completed in one round trip above which they share a line."""


def connect() -> None:
    """Turn events into lines, as far as the logger wants them: a line nobody reads costs nothing."""
    for signal, receiver, level in RECEIVERS:
        if logger.isEnabledFor(level):
            signal.connect(receiver, dispatch_uid="django_skipqueue.logs")


def to_terminal(verbosity: int) -> None:
    """Write lines to standard error where the project has not configured logging. Verbosity as in Django's commands."""
    package = logging.getLogger("django_skipqueue")
    if not package.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
        package.addHandler(handler)
        package.propagate = False
    if package.level == logging.NOTSET:
        package.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


@functools.lru_cache(maxsize=1024)
def printable(name: str) -> str:
    """A name from a row, with whatever could start a new line or steer a terminal replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)


# Events of jobs


def _job_started(job: ClaimedJob, worker: str, **_: Any) -> None:
    logger.debug("started %s #%s (attempt %s)", printable(job.task), job.id, job.attempt, extra=_job_extra(job, worker))


def wants_completed() -> bool:
    """Whether lines about completed jobs are read by anybody."""
    return logger.isEnabledFor(logging.INFO)


def completed(attempts: list[Attempt]) -> None:
    """A line for each completed job; for a large batch one line, unless debug lines are wanted.

    No signal receiver: under load a line for each job would take twice the time of running it, and nobody could read
    them.
    """
    if len(attempts) <= LARGE_BATCH or logger.isEnabledFor(logging.DEBUG):
        for attempt in attempts:
            _finished(logging.INFO, "completed", attempt)
        return
    by_task = Counter(attempt.job.task for attempt in attempts)
    tasks = ", ".join(f"{count:,} {printable(task)}" for task, count in by_task.most_common(5))
    logger.info("completed %s: %s", counted(len(attempts), "job"), tasks, extra={"jobs": len(attempts)})


def _job_retrying(attempt: Attempt, **_: Any) -> None:
    level = logging.WARNING if attempt.outcome.last_error else logging.INFO
    _finished(level, f"will run again in {attempt.outcome.delay:.1f} s:", attempt)


def _job_failed(attempt: Attempt, **_: Any) -> None:
    _finished(logging.ERROR, "failed", attempt)


def _job_discarded(attempt: Attempt, **_: Any) -> None:
    _finished(logging.WARNING, "discarded", attempt)


def _job_cancelled(attempt: Attempt, **_: Any) -> None:
    _finished(logging.INFO, "cancelled", attempt)


def _lease_lost(attempt: Attempt, **_: Any) -> None:
    _finished(logging.WARNING, "lost the lease, so this outcome was not written:", attempt)


def _job_recovered(job: RecoveredJob, **_: Any) -> None:
    logger.warning(
        "recovered %s #%s, claimed by %s at %s: %s",
        printable(job.task),
        job.id,
        printable(job.locked_by),
        job.locked_at,
        job.status,
        extra={
            "job_id": job.id,
            "task": job.task,
            "queue": job.queue_name,
            "attempt": job.attempt,
            "worker": job.locked_by,
        },
    )


def _finished(level: int, what: str, attempt: Attempt) -> None:
    job, outcome, duration_ms, worker, _ = attempt
    reason = f": {printable(outcome.last_error)}" if outcome.last_error else ""
    logger.log(
        level,
        "%s %s #%s (attempt %s/%s, %.1f ms after %.1f ms)%s",
        what,
        printable(job.task),
        job.id,
        job.attempt,
        job.max_attempts,
        duration_ms,
        job.wait_ms,
        reason,
        extra={**_job_extra(job, worker), "duration_ms": duration_ms},
    )


def _job_extra(job: ClaimedJob, worker: str) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue_name,
        "attempt": job.attempt,
        "wait_ms": job.wait_ms,
        "worker": worker,
    }


# Events of workers


def _worker_started(sender: str, worker_id: str, **_: Any) -> None:
    logger.info("worker %s started (%s)", printable(sender), printable(worker_id), extra={"worker": sender})


def _worker_stopped(sender: str, jobs_done: int, **_: Any) -> None:
    logger.info("worker %s stopped after %s", printable(sender), counted(jobs_done, "job"), extra={"worker": sender})


RECEIVERS: tuple[tuple[Signal, Any, int], ...] = (
    (signals.job_started, _job_started, logging.DEBUG),
    (signals.job_retrying, _job_retrying, logging.INFO),
    (signals.job_failed, _job_failed, logging.ERROR),
    (signals.job_discarded, _job_discarded, logging.WARNING),
    (signals.job_cancelled, _job_cancelled, logging.INFO),
    (signals.job_recovered, _job_recovered, logging.WARNING),
    (signals.lease_lost, _lease_lost, logging.WARNING),
    (signals.worker_started, _worker_started, logging.INFO),
    (signals.worker_stopped, _worker_stopped, logging.INFO),
)


# What is no event


def starting(lines: list[str]) -> None:
    """What the supervisor says about itself before its first worker starts."""
    for line in lines:
        logger.info("%s", printable(line))


def stopping(signal_name: str, timeout: float) -> None:
    """The first signal was received."""
    logger.info("%s: finishing what runs, at most %.0f s; once more to stop at once", signal_name, timeout)


def stopping_now(signal_name: str) -> None:
    """The second signal was received."""
    logger.warning("%s again: giving back what still runs", signal_name)


def given_back(worker: str, count: int) -> None:
    """Jobs were still running when the time to shut down was over."""
    logger.warning(
        "worker %s gave back %s that still ran; no attempt was charged", printable(worker), counted(count, "job")
    )


def raised_after_completion(job: ClaimedJob, reason: str) -> None:
    """A task failed after it had committed its job's completion itself."""
    logger.error(
        "%s #%s is completed, but its task went on and raised: %s",
        printable(job.task),
        job.id,
        printable(reason),
        extra={"job_id": job.id, "task": job.task},
    )


def blocked(worker: str, lines: list[str]) -> None:
    """What `async def` tasks left behind keeps those after them from running. The lines say where its threads are."""
    logger.error(
        "worker %s is replaced: what no job waits for any more blocks its event loop, or the thread of its queries",
        printable(worker),
        extra={"worker": worker},
    )
    for line in lines:
        logger.error("worker %s, thread %s", printable(worker), printable(line), extra={"worker": worker})


def rows_locked(worker: str, job_id: int, count: int) -> None:
    """Outcomes cannot be written yet. The id is that of the first."""
    logger.warning(
        "worker %s cannot write the outcomes of %s yet, as somebody has the rows locked; the first is job #%s",
        printable(worker),
        counted(count, "job"),
        job_id,
        extra={"worker": worker},
    )


def recycling(worker: str, reason: str) -> None:
    """A worker has reached its limit of jobs or memory."""
    logger.info("worker %s is replaced: %s", printable(worker), printable(reason), extra={"worker": worker})


def strays_released(worker: str, count: int) -> None:
    """Claims whose answer was lost with a connection were given back."""
    logger.warning("worker %s gave back %s whose claim it never heard of", printable(worker), counted(count, "job"))


def unstarted_released(worker: str, count: int) -> None:
    """A dead worker had claimed jobs that it had not begun."""
    what = counted(count, "job")
    logger.warning("gave back %s that worker %s had not begun; no attempt was charged", what, printable(worker))


def worker_died(worker: str, cause: str, restart_in: float | None) -> None:
    """A worker process ended when nobody had asked it to."""
    then = (
        ""
        if restart_in is None
        else f"; starting another in {restart_in:.1f} s"
        if restart_in
        else "; starting another"
    )
    logger.error("worker %s died: %s%s", printable(worker), printable(cause), then, extra={"worker": worker})


def worker_not_started(worker: str, error: OSError, retry_in: float) -> None:
    """The system has no room for another process."""
    logger.error(
        "worker %s could not be started, trying again in %.1f s: %s",
        printable(worker),
        retry_in,
        printable(str(error)),
        extra={"worker": worker},
    )


def supervisor_gone(worker: str, timeout: float) -> None:
    """The parent process is gone, and with it the heartbeat."""
    logger.error("worker %s lost its supervisor: stopping within %.0f s", printable(worker), timeout)


def part_died(worker: str, error: BaseException) -> None:
    """A thread of the worker's own ended; the process follows it."""
    logger.critical("worker %s is broken and stops: %r", printable(worker), error, exc_info=error)


def database_lost(who: str, error: BaseException, retry_in: float) -> None:
    """A statement failed; it is tried again."""
    message = " ".join(str(error).split())
    logger.error("%s cannot use the database, trying again in %.1f s: %s", printable(who), retry_in, printable(message))


def database_back(who: str) -> None:
    """The first statement after a failure went through."""
    logger.info("%s can use the database again", printable(who))


def deaf(who: str) -> None:
    """A notification to oneself did not arrive: a pooler gives each transaction another connection."""
    logger.warning(
        "%s does not hear PostgreSQL's notifications, as behind a pooler in transaction mode, so it only polls; "
        "connect it directly, or say --no-listen",
        printable(who),
    )


def timeouts_refused(who: str, error: BaseException) -> None:
    """A pooler takes no timeouts when a connection is opened."""
    message = " ".join(str(error).split())
    logger.warning("%s connects without server-side timeouts: %s", printable(who), printable(message))


def notify_failed(queue_name: str, error: BaseException) -> None:
    """Workers were not woken; they find the job when they poll."""
    logger.warning("could not notify the workers of queue %s: %r", printable(queue_name), error)


def promoted(count: int) -> None:
    """Scheduled jobs became due."""
    logger.debug("%s became due", counted(count, "scheduled job"))


def pruned(counts: dict[str, int]) -> None:
    """Finished jobs were deleted."""
    logger.debug("pruned %s", ", ".join(f"{count} {status}" for status, count in counts.items()))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

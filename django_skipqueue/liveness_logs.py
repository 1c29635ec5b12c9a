"""The log lines about who is alive and who is not, and about what goes on although something else does not.

Like those of `logs`: an event, then `key=value`.
"""

import logging

from .log_format import in_a_line, in_words
from .logs import write, write_about_worker


def recycling(worker: str, reason: str) -> None:
    """A worker has reached its limit of jobs or memory."""
    write_about_worker(logging.INFO, "worker_recycled", worker, reason=reason)


def worker_died(worker: str, cause: str, restart_in: float | None) -> None:
    """A worker process ended when nobody had asked it to."""
    restart = {} if restart_in is None else {"restart_in": in_words(restart_in)}
    shown = {"worker": worker, "cause": cause, **restart}
    write(logging.ERROR, "worker_died", shown, extra={"worker_name": worker})


def worker_not_started(worker: str, error: OSError, retry_in: float) -> None:
    """The system has no room for another process."""
    write_about_worker(logging.ERROR, "worker_not_started", worker, retry_in=in_words(retry_in), reason=str(error))


def supervisor_gone(worker: str, timeout: float) -> None:
    """The parent process is gone, and with it the heartbeat."""
    write_about_worker(logging.ERROR, "supervisor_gone", worker, stopping_within=in_words(timeout))


def part_died(worker: str, error: BaseException) -> None:
    """A thread of the worker's own ended; the process follows it."""
    write_about_worker(logging.CRITICAL, "worker_broken", worker, reason=repr(error), error=error)


def worker_silent(worker: str, seconds: float) -> None:
    """A control loop gives no sign of life."""
    write_about_worker(
        logging.WARNING, "worker_silent", worker, since=in_words(seconds), hint="its control loop stands still"
    )


def worker_frozen(worker: str, seconds: float) -> None:
    """The same for too long."""
    hint = "standard error has its stacks; the process is killed and replaced"
    write_about_worker(logging.ERROR, "worker_frozen", worker, since=in_words(seconds), hint=hint)


def worker_back(worker: str) -> None:
    """A control loop that was silent moves again."""
    write_about_worker(logging.INFO, "worker_back", worker)


def receiver_hangs(who: str, stack: str, hint: str) -> None:
    """A signal receiver has not returned for a minute."""
    write(logging.ERROR, "receiver_hangs", {"who": who, "thread": stack, "hint": hint})


def claiming_paused(worker: str, reason: str) -> None:
    """A worker claims nothing, for a reason that is neither a lack of jobs nor of places."""
    write_about_worker(logging.WARNING, "claiming_paused", worker, reason=reason)


def claiming_resumed(worker: str) -> None:
    """That is over."""
    write_about_worker(logging.INFO, "claiming_resumed", worker)


def heartbeat_refused(worker: str, error: BaseException) -> None:
    """A worker could not say that it is alive, though the database answers."""
    write_about_worker(logging.ERROR, "heartbeat_refused", worker, reason=in_a_line(error))


def row_gone(worker: str) -> None:
    """Somebody has taken a worker for dead that is alive."""
    write_about_worker(logging.WARNING, "worker_row_gone", worker, hint="it was taken for dead; it makes its row anew")


def supervisor_silent(worker: str, seconds: float) -> None:
    """Only the worker itself still says that it is alive."""
    write_about_worker(
        logging.WARNING, "supervisor_silent", worker, since=in_words(seconds), hint="the worker goes on alone"
    )


def supervisor_back(worker: str) -> None:
    """Its supervisor says so again."""
    write_about_worker(logging.INFO, "supervisor_back", worker)


def service_failed(service: str, error: BaseException, retry_in: float) -> None:
    """The database has refused what one service of a supervisor asked for; the others go on."""
    shown = {"service": service, "retry_in": in_words(retry_in), "error": in_a_line(error)}
    write(logging.ERROR, "service_failed", shown)


def service_back(service: str) -> None:
    """It went through."""
    write(logging.INFO, "service_back", {"service": service})


def lines_dropped(count: int) -> None:
    """The log did not take lines as fast as they came."""
    write(logging.WARNING, "lines_dropped", {"count": count, "reason": "the log was blocked, or too slow"})

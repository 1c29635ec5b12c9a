"""The log lines about who is alive and who is not, and about what goes on although something else does not.

Like those of `logs`: an event, then `key=value`.
"""

import logging

from .log_format import in_a_line, in_words
from .logs import write, write_about_worker


def stopping(signal_name: str, timeout: float) -> None:
    """The first signal was received."""
    hint = "finishing what runs; a second signal stops at once"
    write(logging.INFO, "supervisor_stopping", {"signal": signal_name, "timeout": in_words(timeout), "hint": hint})


def stopping_now(signal_name: str) -> None:
    """The second signal was received."""
    write(logging.WARNING, "supervisor_stopping_now", {"signal": signal_name, "hint": "giving back what still runs"})


def unstarted_released(worker: str, count: int) -> None:
    """A dead worker had claimed jobs that it had not begun."""
    reason = "the worker died before it began them; no attempt was charged"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


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
    """The database did what the service asked for, after it had refused that."""
    write(logging.INFO, "service_back", {"service": service})


def lines_dropped(count: int) -> None:
    """The log did not take lines as fast as they came."""
    write(logging.WARNING, "lines_dropped", {"count": count, "reason": "the log was blocked, or too slow"})


def database_lost(who: str, error: BaseException, retry_in: float) -> None:
    """A statement failed; it is tried again."""
    shown = {"who": who, "retry_in": in_words(retry_in), "error": in_a_line(error)}
    write(logging.ERROR, "database_lost", shown)


def database_back(who: str) -> None:
    """The first statement after a failure went through."""
    write(logging.INFO, "database_back", {"who": who})


def notifications_unavailable(who: str) -> None:
    """A notification to oneself did not arrive: a pooler gives each transaction another connection."""
    hint = "it only polls, as behind a pooler in transaction mode: connect it directly, or say --no-listen"
    write(logging.WARNING, "notifications_unheard", {"who": who, "hint": hint})


def timeouts_refused(who: str, error: BaseException) -> None:
    """A pooler takes no timeouts when a connection is opened."""
    write(logging.WARNING, "server_timeouts_refused", {"who": who, "error": in_a_line(error)})

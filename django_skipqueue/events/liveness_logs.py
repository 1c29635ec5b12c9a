"""Log lines about the state of supervisors, workers, services and connections, in the format of `events.logs`."""

import logging
from collections.abc import Collection

from . import log_context
from .log_format import in_a_line, in_words
from .logs import write, write_about_worker


def stopping(signal_name: str, timeout: float) -> None:
    """A supervisor received the first signal to stop."""
    hint = "finishing running jobs; a second signal stops at once"
    write(logging.INFO, "supervisor_stopping", {"signal": signal_name, "timeout": in_words(timeout), "hint": hint})


def stop_requested(worker: str, timeout: float) -> None:
    """A supervisor stops because an operator has requested this for one of its workers."""
    hint = "an operator has requested it; finishing running jobs"
    write(logging.INFO, "supervisor_stopping", {"worker": worker, "timeout": in_words(timeout), "hint": hint})


def stopping_now(signal_name: str) -> None:
    """A supervisor received the second signal to stop."""
    write(logging.WARNING, "supervisor_stopping_now", {"signal": signal_name, "hint": "releasing running jobs"})


def unstarted_released(worker: str, count: int) -> None:
    reason = "the worker died before it began them; no attempt was charged"
    write_about_worker(logging.WARNING, "jobs_released", worker, count=count, reason=reason)


def recycling(worker: str, reason: str) -> None:
    write_about_worker(logging.INFO, "worker_recycled", worker, reason=reason)


def recycling_waits(worker: str, job_ids: Collection[int]) -> None:
    """A worker must be replaced after an interruption, but its other jobs run on. The line names ten of these jobs."""
    ids = ",".join(map(str, sorted(job_ids)[:10]))
    hint = "they may hang on a lock that the interrupted attempt has left taken"
    write_about_worker(logging.WARNING, "worker_not_recycled", worker, count=len(job_ids), ids=ids, hint=hint)


def worker_died(worker: str, cause: str, restart_in: float | None) -> None:
    restart = {} if restart_in is None else {"restart_in": in_words(restart_in)}
    shown = {"worker": worker, "cause": cause, **restart}
    write(logging.ERROR, "worker_died", shown, extra={"worker_name": worker})


def worker_not_started(worker: str, error: OSError, retry_in: float) -> None:
    write_about_worker(logging.ERROR, "worker_not_started", worker, retry_in=in_words(retry_in), reason=str(error))


def supervisor_died(supervisor: str, cause: str, restart_in: float | None) -> None:
    """A supervisor process ended unexpectedly. Its parent process, the steward, starts another one, unless it stops."""
    restart = {} if restart_in is None else {"restart_in": in_words(restart_in)}
    write(logging.ERROR, "supervisor_died", {"supervisor": supervisor, "cause": cause, **restart})


def supervisor_not_started(supervisor: str, error: OSError, retry_in: float) -> None:
    shown = {"supervisor": supervisor, "retry_in": in_words(retry_in), "reason": str(error)}
    write(logging.ERROR, "supervisor_not_started", shown)


def steward_gone(supervisor: str, timeout: float) -> None:
    """The steward, which is the parent process of this supervisor, has died. The supervisor stops as after SIGTERM."""
    shown = {"supervisor": supervisor, "stopping_within": in_words(timeout)}
    write(logging.ERROR, "steward_gone", shown)


def supervisor_gone(worker: str, timeout: float) -> None:
    """The supervisor of this worker has died. The worker writes its heartbeat itself, finishes its jobs and stops."""
    write_about_worker(logging.ERROR, "supervisor_gone", worker, stopping_within=in_words(timeout))


def part_died(worker: str, error: BaseException) -> None:
    """One of the worker's own threads died, so the worker process ends as well."""
    write_about_worker(logging.CRITICAL, "worker_broken", worker, reason=repr(error), error=error)


def worker_silent(worker: str, seconds: float) -> None:
    write_about_worker(
        logging.WARNING, "worker_silent", worker, since=in_words(seconds), hint="its control loop does not respond"
    )


def worker_frozen(worker: str, seconds: float) -> None:
    """The control loop of a worker has not responded for a long time, so the process is killed."""
    hint = "standard error has its stacks; the process is killed and replaced"
    write_about_worker(logging.ERROR, "worker_frozen", worker, since=in_words(seconds), hint=hint)


def worker_back(worker: str) -> None:
    write_about_worker(logging.INFO, "worker_back", worker)


def receiver_hangs(who: str, stack: str, hint: str) -> None:
    """A signal receiver has not returned for a minute."""
    write(logging.ERROR, "receiver_hangs", {"who": who, "thread": stack, "hint": hint})


def claiming_paused(worker: str, reason: str) -> None:
    """A worker stopped claiming jobs, although it has free slots and there may be jobs."""
    write_about_worker(logging.WARNING, "claiming_paused", worker, reason=reason)


def claiming_resumed(worker: str) -> None:
    write_about_worker(logging.INFO, "claiming_resumed", worker)


def heartbeat_refused(worker: str, error: BaseException) -> None:
    """PostgreSQL refused to write a worker's heartbeat, although the connection works."""
    write_about_worker(logging.ERROR, "heartbeat_refused", worker, reason=in_a_line(error))


def row_gone(worker: str) -> None:
    """The row of a live worker was deleted, because a supervisor took the worker for dead."""
    write_about_worker(logging.WARNING, "worker_row_gone", worker, hint="it counted as dead; it inserts its row again")


def supervisor_silent(worker: str, seconds: float) -> None:
    hint = "only the worker itself writes its heartbeat"
    write_about_worker(logging.WARNING, "supervisor_silent", worker, since=in_words(seconds), hint=hint)


def supervisor_back(worker: str) -> None:
    write_about_worker(logging.INFO, "supervisor_back", worker)


def service_failed(service: str, error: BaseException, retry_in: float) -> None:
    shown = {"service": service, "retry_in": in_words(retry_in), "error": in_a_line(error)}
    write(logging.ERROR, "service_failed", shown)


def service_back(service: str) -> None:
    write(logging.INFO, "service_back", {"service": service})


def scrape_failed(part: str, error: BaseException, *, database: str | None = None) -> None:
    """A query for `/metrics` failed. All other metrics are served. `database`: its alias, if several hold queues."""
    with log_context.about(database):
        write(logging.WARNING, "scrape_failed", {"part": part, "error": in_a_line(error)})


def lines_dropped(count: int) -> None:
    """Log lines were dropped, because the log handlers could not write them fast enough."""
    write(logging.WARNING, "lines_dropped", {"count": count, "reason": "the log was blocked, or too slow"})


def database_unreachable(alias: str, reason: str) -> None:
    """One of several databases could not be reached when the command started. The other databases are served."""
    hint = "it is served once it can be reached"
    shown = {"database": alias, "hint": hint, "error": reason}
    write(logging.ERROR, "database_unreachable", shown, extra={"database": alias})


def database_lost(who: str, error: BaseException, retry_in: float) -> None:
    """A statement failed on the control connection. The process connects again and repeats the statement."""
    shown = {"who": who, "retry_in": in_words(retry_in), "error": in_a_line(error)}
    write(logging.ERROR, "database_lost", shown)


def database_back(who: str) -> None:
    write(logging.INFO, "database_back", {"who": who})


def sessions_ended(alias: str, count: int) -> None:
    """Sessions with open transactions of dead workers were ended. Their machine froze or lost power, for example."""
    shown = {"database": alias, "count": count, "reason": "dead workers had left transactions open"}
    write(logging.WARNING, "sessions_ended", shown, extra={"database": alias})


def sessions_left(alias: str, count: int) -> None:
    """The supervisor's database role is not allowed to end the sessions that dead workers have left open."""
    hint = "their jobs wait until the server gives up: manage.py skipqueue doctor prints the GRANT"
    write(logging.ERROR, "sessions_left", {"database": alias, "count": count, "hint": hint}, extra={"database": alias})


def notifications_unavailable(who: str) -> None:
    """A process did not receive its own notification, because a pooler gives each transaction another connection."""
    hint = "it only polls, as behind a pooler in transaction mode: connect it directly, or say --no-listen"
    write(logging.WARNING, "notifications_unheard", {"who": who, "hint": hint})


def timeouts_refused(who: str, problem: str) -> None:
    """The server timeouts could not be set on the connection, because a pooler refuses or ignores the option."""
    write(logging.WARNING, "server_timeouts_refused", {"who": who, "error": problem})

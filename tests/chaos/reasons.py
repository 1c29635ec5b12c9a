"""Finds out why a lease ended, and which faults excuse a delay.

Invariant: each function is pure. Only a log line or the job's row is a reason; a fault somewhere in the system is not.
"""

from enum import Enum

from .evidence import LOG_BLOCKED, POSTGRES, Change, Death, Evidence, Fault, HeldLease, Line

RECONNECT = 10.0
"""Seconds at most until a process reconnects to a database that is available again."""

LOG_DELAY = 3.0
"""Seconds at most between a change of a job and the log line about it."""

LOG_LINES = {
    "settle": ("job retrying ", "job failed ", "job discarded "),
    "cancel": ("job cancelled ", "lease lost "),
    "recover": ("job recovered ",),
}
"""The beginnings of the log lines about each kind of change that ends a lease."""


class Reason(Enum):
    """Where it is recorded why a task ran to its end again."""

    LINE = "a line in the log"
    ROW = "the job's own row"


def reason_of_repeat(evidence: Evidence, held_lease: HeldLease) -> Reason | str:
    """Return where it is recorded why a task ran to its end again; if nowhere, a sentence about the violation."""
    end = held_lease.end
    if end is None:
        return "its lease never ended"
    if end.verb == "settle" and not end.error:
        return f"its outcome was written as {end.after}"
    if end.verb == "release":
        return Reason.LINE if _has_log_line_of_release(evidence, held_lease) else "no line tells that it was given back"
    if end.verb not in LOG_LINES:
        return f"its lease was ended by a {end.verb}"
    if _has_log_line(evidence, end):
        return Reason.LINE
    if end.verb == "recover" and not (
        _supervisor_died_before_logging(evidence, end) or _answer_was_lost(evidence, end)
    ):
        return "no line tells of the recovery"
    return Reason.ROW  # the row has the error, or the reason of the cancellation


def _has_log_line(evidence: Evidence, end: Change) -> bool:
    """Whether a log line about the end of a lease follows soon."""
    lines = [line for line in evidence.lines_of.get(end.job, ()) if _is_soon(evidence, line, end.at)]
    return any(event in line.text for line in lines for event in LOG_LINES[end.verb])


def _has_log_line_of_release(evidence: Evidence, held_lease: HeldLease) -> bool:
    """Whether a log line says that jobs of the worker were released, or that the worker died after the claim."""
    assert held_lease.end is not None
    name = evidence.names.get(held_lease.claim.holder)
    release_line, death_line = f"jobs released worker={name} ", f"worker died worker={name} "
    return any(
        (release_line in line.text and _is_soon(evidence, line, held_lease.end.at))
        or (death_line in line.text and held_lease.claim.at <= line.at and line.at - held_lease.end.at <= LOG_DELAY)
        for line in evidence.log
    )


def _is_soon(evidence: Evidence, line: Line, at: float) -> bool:
    """Whether a line was read soon after this time. Time during which the log was blocked does not count."""
    faults_of_log = (fault for fault in evidence.faults if fault.what == LOG_BLOCKED and fault.target == line.machine)
    latest_time = (
        max((fault.ended for fault in faults_of_log if fault.overlaps(at, at + LOG_DELAY)), default=at) + LOG_DELAY
    )
    return at - 0.5 <= line.at <= latest_time


def _supervisor_died_before_logging(evidence: Evidence, recovery: Change) -> bool:
    """Whether a supervisor may have been killed after it committed a recovery, and before it logged the recovery."""
    return any(0 <= death.at - recovery.at <= 2 and not death.alone for _, death in evidence.deaths)


def _answer_was_lost(evidence: Evidence, recovery: Change) -> bool:
    """Whether a log line says that a supervisor lost its connection: then it may not know which jobs it has recovered.

    The commit may have come long before or long after the loss of the connection.
    """
    return any(
        'database lost who="supervisor ' in line.text and abs(line.at - recovery.at) <= RECONNECT + LOG_DELAY
        for line in evidence.log
    )


# Faults


def hindrance(evidence: Evidence, began: float, ended: float, machine: str, *, own: Fault | None = None) -> float:
    """When the last fault in this time that hit the machine or PostgreSQL ended; 0 if there was no fault.

    An orderly stop of the machine does not count, because the machine then releases the jobs that it has not begun.
    """
    other_faults = [
        fault for fault in _slowing_faults(evidence, own, began, ended) if _hits(fault, machine) and not fault.stops
    ]
    return max((fault.ended for fault in other_faults), default=0.0)


def was_silenced(evidence: Evidence, holder: str | None, at: float) -> bool:
    """Whether other machines could take this worker for dead at this time, because it wrote no heartbeat."""
    pid = evidence.processes.get(holder or "")
    machine = evidence.machine_of(holder)
    return any(
        (fault.silences and _hits(fault, machine) and fault.overlaps(at - evidence.worker_timeout - RECONNECT, at))
        or any(death.pid == pid and death.at <= at for death in fault.deaths)
        for fault in evidence.faults
    )


def excuse(evidence: Evidence, own: Fault, death: Death, held_lease: HeldLease) -> float:
    """The seconds of a delay that do not count, because no process could recover the job during another fault."""
    other_faults = _slowing_faults(evidence, own, death.at, held_lease.end.at if held_lease.end else float("inf"))
    # The supervisor of a worker that died alone recovers its jobs; any other machine recovers the jobs of a machine.
    hindering_faults = [fault for fault in other_faults if not death.alone or _hits(fault, own.target)]
    return max((fault.ended - death.at + RECONNECT for fault in hindering_faults), default=0.0)


def _hits(fault: Fault, machine: str) -> bool:
    return fault.target in (POSTGRES, machine)


def _slowing_faults(evidence: Evidence, own: Fault | None, began: float, ended: float) -> list[Fault]:
    """The faults in this time, except `own`, that keep a machine from working with the database."""
    return [fault for fault in evidence.faults if fault is not own and fault.slows and fault.overlaps(began, ended)]

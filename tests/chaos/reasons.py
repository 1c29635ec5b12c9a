"""What explains the end of a lease, and which faults excuse that something took its time.

Invariant: pure. A reason is in the log or in a row of the job's own; that something was broken somewhere is none.
"""

from enum import Enum

from .evidence import LOG_BLOCKED, POSTGRES, Change, Death, Evidence, Fault, Held, Line

RECONNECT = 10.0
"""Seconds, at most, after which a process tries again to reach a database that is back."""

SOON = 3.0
"""Seconds, at most, between what is done to a job and the line about it."""

LINES = {
    "settle": ("job retrying ", "job failed ", "job discarded "),
    "cancel": ("job cancelled ", "lease lost "),
    "recover": ("job recovered ",),
}
"""How the lines begin that tell of what ended a lease, by its verb."""


class Reason(Enum):
    """Where it is said why a run that reached its end was repeated."""

    LINE = "a line in the log"
    ROW = "the job's own row"


def reason_of_repeat(evidence: Evidence, held: Held) -> Reason | str:
    """Where it is said; or, as a sentence, what is wrong."""
    end = held.end
    if end is None:
        return "its lease never ended"
    if end.verb == "settle" and not end.error:
        return f"its outcome was written as {end.after}"
    if end.verb == "release":
        return Reason.LINE if _tells_of_release(evidence, held) else "no line tells that it was given back"
    if end.verb not in LINES:
        return f"its lease was ended by a {end.verb}"
    if _tells_of(evidence, end):
        return Reason.LINE
    if end.verb == "recover" and not (_teller_ended(evidence, end) or _answer_was_lost(evidence, end)):
        return "no line tells of the recovery"
    return Reason.ROW  # the error, or the reason of the cancel, stands in it: that is how the verb is known


def _tells_of(evidence: Evidence, end: Change) -> bool:
    """Whether a line tells of it soon after the job's lease was ended."""
    lines = [line for line in evidence.lines_of.get(end.job, ()) if _is_soon(evidence, line, end.at)]
    return any(event in line.text for line in lines for event in LINES[end.verb])


def _tells_of_release(evidence: Evidence, held: Held) -> bool:
    """Whether a line says that the jobs of this worker were given back, or that it died since it had claimed them."""
    assert held.end is not None
    name = evidence.names.get(held.claim.holder)
    released, died = f"jobs released worker={name} ", f"worker died worker={name} "
    return any(
        (released in line.text and _is_soon(evidence, line, held.end.at))
        or (died in line.text and held.claim.at <= line.at and line.at - held.end.at <= SOON)
        for line in evidence.log
    )


def _is_soon(evidence: Evidence, line: Line, at: float) -> bool:
    """Whether a line was read soon after this time, or soon after its machine's log was read again."""
    blocked = (fault for fault in evidence.faults if fault.what == LOG_BLOCKED and fault.target == line.machine)
    until = max((fault.ended for fault in blocked if fault.overlaps(at, at + SOON)), default=at) + SOON
    return at - 0.5 <= line.at <= until


def _teller_ended(evidence: Evidence, recovery: Change) -> bool:
    """Whether a supervisor was killed between the commit of a recovery and the line about it."""
    return any(0 <= death.at - recovery.at <= 2 and not death.alone for _, death in evidence.deaths)


def _answer_was_lost(evidence: Evidence, recovery: Change) -> bool:
    """Whether a line says that a supervisor lost its connection: the answer may have been lost that names the job.

    The statement may have waited for its commit longer than the connection lasted, or the other way round.
    """
    return any(
        'database lost who="supervisor ' in line.text and abs(line.at - recovery.at) <= RECONNECT + SOON
        for line in evidence.log
    )


# Faults


def hindrance(evidence: Evidence, began: float, ended: float, machine: str, *, own: Fault | None = None) -> float:
    """Until when something was broken, in this time, that a machine needs: PostgreSQL, or itself; 0: nothing was.

    That it was stopped in order is no hindrance: it gives back what it has not begun.
    """
    others = [fault for fault in _others(evidence, own, began, ended) if _hits(fault, machine) and not fault.stops]
    return max((fault.ended for fault in others), default=0.0)


def was_silenced(evidence: Evidence, holder: str | None, at: float) -> bool:
    """Whether the others could take this worker for dead at this time, because its machine wrote no heartbeat."""
    pid = evidence.processes.get(holder or "")
    machine = evidence.machine_of(holder)
    return any(
        (fault.silences and _hits(fault, machine) and fault.overlaps(at - evidence.worker_timeout - RECONNECT, at))
        or any(death.pid == pid and death.at <= at for death in fault.deaths)
        for fault in evidence.faults
    )


def excuse(evidence: Evidence, own: Fault, death: Death, held: Held) -> float:
    """Seconds that do not count, because nobody could have taken the job back: other faults were under way."""
    others = _others(evidence, own, death.at, held.end.at if held.end else float("inf"))
    # The supervisor of a worker that died alone takes its jobs back; those of a machine, any other machine.
    hindering = [fault for fault in others if not death.alone or _hits(fault, own.target)]
    return max((fault.ended - death.at + RECONNECT for fault in hindering), default=0.0)


def _hits(fault: Fault, machine: str) -> bool:
    return fault.target in (POSTGRES, machine)


def _others(evidence: Evidence, own: Fault | None, began: float, ended: float) -> list[Fault]:
    """The other faults of this time that keep a machine from working with the database."""
    return [fault for fault in evidence.faults if fault is not own and fault.slows and fault.overlaps(began, ended)]

"""Reads the messages of a broker: outcomes, and jobs that come back.

Invariant: nothing that a message holds raises. Who can write to the broker can send anything, and a message that ended
its relay would come again. What cannot be read is told as such, by the id of its message.
"""

from typing import Any

from . import wire
from .carrier import BegunJob, ReturnedJob, ReturnedOutcome, Taken

REASONS = ("expired", "delivery_limit", "maxlen")
"""Why the broker itself gives a job back. Otherwise a worker has rejected it."""

ID_SHOWN = 100
"""Characters of a message's id that are shown."""


def outcomes(taken: Taken, delivery: int, body: bytes | memoryview | str, id: object, *, now: float) -> int:
    """Add the outcomes in a message to `taken`, and return their number. `id` is the message's `correlation_id`."""
    try:
        parts = wire.split_outcomes(wire.decode(body))
    except Exception as error:
        taken.jobs.append(ReturnedJob(delivery, wire.lease_ref_of(id), "unreadable", None, _problem(id, error)))
        return 1
    for ref, payload in parts:
        if payload == wire.BEGUN and ref is not None:
            taken.begun.append(BegunJob(delivery, ref))
            continue
        try:
            attempt = wire.attempt_from_wire(payload, now=now)
        except Exception as error:
            taken.jobs.append(ReturnedJob(delivery, ref, "unreadable", None, _problem(id, error)))
        else:
            taken.outcomes.append(ReturnedOutcome(delivery, attempt))
    return len(parts)


def returned(delivery: int, body: bytes | memoryview | str, id: object, headers: object) -> ReturnedJob:
    """The job in a message that has come back, with the reason that is in the headers of the message."""
    try:
        job = wire.lean(wire.job_from_wire(wire.decode(body)[0][0])[0])
    except Exception as error:
        ref = wire.lease_ref_of(id)
        return ReturnedJob(delivery, ref, _reason(headers) if ref else "unreadable", None, _problem(id, error))
    return ReturnedJob(delivery, job.ref, _reason(headers), job)


def _problem(id: object, error: Exception) -> str:
    return f"{str(id)[:ID_SHOWN]}: {error}"


def _reason(headers: Any) -> str:
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    last = deaths[0] if isinstance(deaths, list) and deaths else None
    reason = last.get("reason") if isinstance(last, dict) else None
    return str(reason) if reason in REASONS else "rejected"

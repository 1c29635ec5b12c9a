"""What becomes of a job that has no outcome of the carrier's: it has ended there, or cannot be sent there. Pure."""

from ..exceptions import MessageTooLarge, UnreadableOutcome
from ..values.outcomes import Outcome, error_entry, summary
from ..values.records import Attempt, ClaimedJob
from . import wire
from .carrier import ReturnedJob, TooLarge

REJECTED_DELAY = 10.0
"""Seconds until a job is tried again that a worker of the carrier has refused: it may have another version."""

UNREAD = "?"
"""The task and the queue, in events and roll-ups, of a job whose outcome cannot be read. Its row has them."""


def ended(returned: ReturnedJob, *, carrier: str, database: str, now: float) -> Attempt | None:
    """The attempt of the job; `None`: it has none to settle.

    A job that a worker has refused is scheduled again, and costs no attempt. One whose outcome cannot be read has run,
    so it fails; only its lease is known.
    """
    job = returned.job
    if returned.reason == "unreadable" and returned.ref:
        job = job or ClaimedJob(*returned.ref, UNREAD, UNREAD, "[]", "{}", 0, 0, 0, 0.0, 0.0, "{}")
        outcome = _failure(job, UnreadableOutcome(), carrier)
    elif returned.reason == "rejected" and job is not None:
        line = f"A worker of {carrier} refused the job: it may have another version of django_skipqueue."
        outcome = Outcome("scheduled", delay=REJECTED_DELAY, refund=1, last_error=line, is_unknown=True)
    else:
        return None
    return Attempt(job, outcome, now, now, carrier, database=database)


def not_sent(too_large: TooLarge, *, carrier: str, database: str, now: float) -> Attempt:
    """The failed attempt of a job whose message is too large. It has not begun, and would never be sent."""
    job, size, most = too_large
    error = MessageTooLarge(
        f"The message of the job has {size:,} bytes, and the carrier {carrier} takes {most:,} at most. The job has not "
        "begun. Pass less, such as the key of a row or the name of a file; or raise max_message_size of RabbitMQ, and "
        "MAX_MESSAGE_SIZE of the carrier in SKIPQUEUE['CARRIERS'], and retry the job."
    )
    return Attempt(wire.lean(job), _failure(job, error, carrier), now, now, carrier, database=database)


def _failure(job: ClaimedJob, error: Exception, carrier: str) -> Outcome:
    entry = error_entry(error, attempt=job.attempt, worker=carrier, duration_ms=0.0)
    return Outcome("failed", last_error=summary(error), error=entry)

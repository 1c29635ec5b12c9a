"""What becomes of a job that has ended with the carrier, but whose outcome the relay does not have. Pure."""

from ..exceptions import UnreadableOutcome
from ..values.outcomes import Outcome, error_entry, summary
from ..values.records import Attempt, ClaimedJob
from .carrier import ReturnedJob

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
    if returned.reason == "unreadable":
        job = job or ClaimedJob(*returned.ref, UNREAD, UNREAD, "[]", "{}", 0, 0, 0, 0.0, 0.0, "{}")
        error = UnreadableOutcome()
        entry = error_entry(error, attempt=job.attempt, worker=carrier, duration_ms=0.0)
        outcome = Outcome("failed", last_error=summary(error), error=entry)
    elif returned.reason == "rejected" and job is not None:
        line = f"A worker of {carrier} refused the job: it may have another version of django_skipqueue."
        outcome = Outcome("scheduled", delay=REJECTED_DELAY, refund=1, last_error=line, is_unknown=True)
    else:
        return None
    return Attempt(job, outcome, now, now, carrier, database=database)

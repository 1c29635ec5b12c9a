"""What became of the attempts that were sent to be written: told to the world, as the database says.

Invariant: each attempt is told once; one whose lease was lost, when it is known whether its job was cancelled.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from django.dispatch import Signal

from ..runtime.dispatcher import EventDispatcher
from ..signals import job_cancelled, job_completed, job_discarded, job_failed, job_retrying, lease_lost
from ..store.parameters import ExchangeResult
from ..values.outcomes import Outcome
from ..values.records import Attempt, LeaseRef

if TYPE_CHECKING:
    from ..store import Store

EVENTS = {
    "completed": job_completed,
    "scheduled": job_retrying,
    "failed": job_failed,
    "discarded": job_discarded,
}


class OutcomeReports:
    """Used by the control loop's thread."""

    def __init__(self, dispatcher: EventDispatcher) -> None:
        self.lost: list[Attempt] = []
        """Outcomes that were not written, of which nobody has been told yet."""
        self._dispatcher = dispatcher

    def sent(self, attempts: list[Attempt], answer: ExchangeResult) -> None:
        """Tell what the database says of these."""
        settled = answer.settled()
        outcomes: defaultdict[Signal, list[Attempt]] = defaultdict(list)
        for sent in attempts:
            ref = sent.job.ref
            attempt = sent._replace(outcome=answer.refused[ref]) if ref in answer.refused else sent
            event = EVENTS[attempt.outcome.status] if attempt.is_written or ref in settled else lease_lost
            outcomes[event].append(attempt)
        self.lost += outcomes.pop(lease_lost, [])
        self._dispatcher.outcomes(outcomes)

    def report_lost(self, store: "Store") -> None:
        """Say of those that were not written whether their jobs were cancelled; such jobs keep the errors."""
        reasons: dict[LeaseRef, str | None] = store.lost_leases(attempt.job.ref for attempt in self.lost)
        store.keep_errors(
            attempt.settlement
            for attempt in self.lost
            if attempt.outcome.error and reasons.get(attempt.job.ref) is not None
        )
        told: defaultdict[Signal, list[Attempt]] = defaultdict(list)
        for attempt in self.lost:
            reason = reasons.get(attempt.job.ref)
            if reason is None:
                told[lease_lost].append(attempt)
            else:
                told[job_cancelled].append(attempt._replace(outcome=Outcome("discarded", last_error=reason)))
        self.lost = []
        self._dispatcher.outcomes(told)

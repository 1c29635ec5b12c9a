"""Sends the events about attempts, once the database has accepted or rejected their outcomes.

Invariant: each attempt is in one event. If its lease was lost, the event waits until a statement has shown whether its
job was cancelled.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsEnded,
    AttemptsFailed,
    AttemptsRetrying,
    LeasesLost,
)
from ..runtime.dispatcher import EventDispatcher
from ..store.parameters import ExchangeResult
from ..values.outcomes import Outcome
from ..values.records import Attempt, LeaseRef

if TYPE_CHECKING:
    from ..store import Store

EVENTS: dict[str, type[AttemptsEnded]] = {
    "completed": AttemptsCompleted,
    "scheduled": AttemptsRetrying,
    "failed": AttemptsFailed,
    "discarded": AttemptsDiscarded,
}
"""The event for an accepted outcome, by the status of the outcome."""


class OutcomeReports:
    """Used by the control loop's thread."""

    def __init__(self, dispatcher: EventDispatcher) -> None:
        self.lost: list[Attempt] = []
        """Attempts that lost their leases, and for which no event was sent yet."""
        self._dispatcher = dispatcher

    def sent(self, attempts: list[Attempt], answer: ExchangeResult) -> None:
        """Send the events of accepted outcomes, and put attempts with lost leases into `lost`."""
        settled = answer.settled()
        ended: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        for sent in attempts:
            ref = sent.job.ref
            attempt = sent._replace(outcome=answer.refused[ref]) if ref in answer.refused else sent
            kind = EVENTS[attempt.outcome.status] if attempt.is_written or ref in settled else LeasesLost
            ended[kind].append(attempt)
        self.lost += ended.pop(LeasesLost, [])
        self._send(ended)

    def report_lost(self, store: "Store") -> None:
        """Send the events of attempts with lost leases. The error of an attempt is kept if its job was cancelled."""
        reasons: dict[LeaseRef, str | None] = store.lost_leases(attempt.job.ref for attempt in self.lost)
        store.append_cancelled_errors(
            attempt.settlement
            for attempt in self.lost
            if attempt.outcome.error and reasons.get(attempt.job.ref) is not None
        )
        ended: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        for attempt in self.lost:
            reason = reasons.get(attempt.job.ref)
            if reason is None:
                ended[LeasesLost].append(attempt)
            else:
                ended[AttemptsCancelled].append(attempt._replace(outcome=Outcome("discarded", last_error=reason)))
        self.lost = []
        self._send(ended)

    def _send(self, ended: Mapping[type[AttemptsEnded], list[Attempt]]) -> None:
        for kind, attempts in ended.items():
            self._dispatcher.send(kind(attempts))

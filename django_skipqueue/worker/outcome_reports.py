"""What became of the attempts that were sent to be written: told to the world, as the database says.

Invariant: each attempt is told once; one whose lease was lost, when it is known whether its job was cancelled.
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
"""The kind of event by the status of the outcome."""


class OutcomeReports:
    """Used by the control loop's thread."""

    def __init__(self, dispatcher: EventDispatcher) -> None:
        self.lost: list[Attempt] = []
        """Outcomes that were not written, of which nobody has been told yet."""
        self._dispatcher = dispatcher

    def sent(self, attempts: list[Attempt], answer: ExchangeResult) -> None:
        """Tell what the database says of these."""
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
        """Say of those that were not written whether their jobs were cancelled; such jobs keep the errors."""
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

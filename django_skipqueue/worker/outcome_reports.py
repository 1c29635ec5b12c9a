"""Counts attempts and sends their events, once the database has accepted or rejected their outcomes.

Invariant: each attempt is in one event. If its lease had ended before, the event waits until a statement has shown how:
the job was cancelled, or taken from the worker, or this very outcome was written and the answer was lost.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ..events.events import (
    AttemptsCancelled,
    AttemptsCompleted,
    AttemptsDiscarded,
    AttemptsEnded,
    AttemptsFailed,
    AttemptsRetrying,
    LeasesLost,
    OutcomesDropped,
)
from ..rollups.tally import Tally
from ..runtime.dispatcher import EventDispatcher
from ..values.lost_leases import LostLease
from ..values.outcomes import COMPLETED, Outcome
from ..values.records import Attempt, LeaseRef, Noted

if TYPE_CHECKING:
    from ..store import Store

EVENTS: dict[str, type[AttemptsEnded]] = {
    "completed": AttemptsCompleted,
    "scheduled": AttemptsRetrying,
    "failed": AttemptsFailed,
    "discarded": AttemptsDiscarded,
}
"""The event for an accepted outcome, by the status of the outcome."""


DUPLICATE = "an outcome of this attempt came before"
NOT_THE_CARRIERS = "the carrier does not hold the job"
"""The reasons for which an outcome from a broker is dropped."""


class OutcomeReports:
    """Used by the control loop's thread."""

    def __init__(self, dispatcher: EventDispatcher, tally: Tally, *, remembered: int = 0) -> None:
        """remembered: of how many attempts, at least, a second outcome is known to be one, and is dropped."""
        self.lost: list[Attempt] = []
        """Attempts whose leases had ended before the settle, and for which no event was sent yet."""
        self._dispatcher = dispatcher
        self._tally = tally
        self._remembered = remembered
        self._newer: set[LeaseRef] = set()
        self._older: set[LeaseRef] = set()

    def sent(self, attempts: list[Attempt], settled: Collection[LeaseRef], refused: Mapping[LeaseRef, Outcome]) -> None:
        """Send the events of accepted outcomes, and put attempts whose leases had ended into `lost`.

        refused: the outcomes that were written in place of those that PostgreSQL refused.
        """
        ended: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        again: list[Attempt] = []
        for sent in attempts:
            ref = sent.job.ref
            if ref not in settled and (ref in self._newer or ref in self._older):
                again.append(sent)
                continue
            attempt = sent._replace(outcome=refused[ref]) if ref in refused else sent
            kind = EVENTS[attempt.outcome.status] if attempt.is_written or ref in settled else LeasesLost
            ended[kind].append(attempt)
        self.lost += ended.pop(LeasesLost, [])
        self._send(ended)
        self._drop(again, DUPLICATE)

    def report_lost(self, store: "Store") -> None:
        """Send the events of the attempts in `lost`. The error of an attempt is kept if its job was cancelled."""
        leases = store.lost_leases(attempt.job.ref for attempt in self.lost)
        cancelled = {ref for ref, lease in leases.items() if lease.cancel_reason is not None}
        ended_by_cancel = [attempt for attempt in self.lost if attempt.job.ref in cancelled]
        store.append_cancelled_errors(attempt.settlement for attempt in ended_by_cancel)
        _keep_notes(store, ended_by_cancel)
        ended: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        strange: list[Attempt] = []
        for sent in self.lost:
            lease = leases.get(sent.job.ref)
            if store.carrier and lease is None:  # the lease is valid, so somebody else than the carrier holds the job
                strange.append(sent)
                continue
            kind, attempt = ended_otherwise(sent, lease)
            ended[kind].append(attempt)
        self.lost = []
        self._send(ended)
        self._drop(strange, NOT_THE_CARRIERS)

    def _send(self, ended: Mapping[type[AttemptsEnded], list[Attempt]]) -> None:
        for kind, attempts in ended.items():
            self._tally.ended(kind, attempts)
            self._dispatcher.send(kind(attempts))
            self._remember(attempts)

    def _drop(self, attempts: list[Attempt], reason: str) -> None:
        """Send the event of outcomes that are neither counted nor remembered."""
        if attempts:
            self._dispatcher.send(OutcomesDropped(attempts, reason))

    def _remember(self, attempts: Iterable[Attempt]) -> None:
        """Keep the last attempts in two sets: the older one is dropped when the newer one is full."""
        if self._remembered:
            self._newer.update(attempt.job.ref for attempt in attempts)
            if len(self._newer) >= self._remembered:
                self._newer, self._older = set(), self._newer


def _keep_notes(store: "Store", cancelled: Iterable[Attempt]) -> None:
    """Write what these attempts have noted: `settle` could not, because the cancel raised the lease by one."""
    noted = [
        Noted(attempt.job.id, attempt.job.lease + 1, attempt.started, attempt.outcome.notes)
        for attempt in cancelled
        if attempt.outcome.notes is not None
    ]
    if noted:
        store.note_attempts(noted)


def ended_otherwise(attempt: Attempt, lease: LostLease | None) -> tuple[type[AttemptsEnded], Attempt]:
    """The event for an attempt whose lease had ended before the settle, and the attempt with the outcome of its job."""
    if lease is None:
        return LeasesLost, attempt
    if lease.cancel_reason is not None:
        return AttemptsCancelled, attempt._replace(outcome=Outcome("discarded", last_error=lease.cancel_reason))
    written = lease.written_status(attempt.outcome)
    if written == attempt.outcome.status:  # by an earlier settle, whose answer was lost
        return EVENTS[written], attempt
    if written == "failed":  # PostgreSQL had refused the outcome, and the failure in its place was written
        return EVENTS[written], attempt._replace(outcome=Outcome("failed", last_error=lease.last_error))
    if lease.is_completed:  # by the task itself, in a commit whose answer was lost
        return AttemptsCompleted, attempt._replace(outcome=COMPLETED)
    return LeasesLost, attempt

"""Keep the outcomes that wait to be written, and send the events about written outcomes.

A finished attempt stays in `PendingOutcomes` until the database has accepted or rejected its outcome. An outcome whose
row is locked, or that takes too long even if it is sent alone, is set aside, so that it does not delay other outcomes.

Every outcome is written in the end. If PostgreSQL took too long for an outcome, the outcome is sent alone. A small
outcome is tried until it succeeds. If a large outcome keeps timing out while other outcomes succeed, it is replaced by
an error which explains this.

After the database has accepted or rejected an outcome, the attempt is counted, and one event is sent. If the lease of
the attempt had already ended, a statement first finds out why: the job was cancelled, it was taken from the worker, or
this outcome was already written, but the answer was lost.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import OperationalError

from ..events import logs
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
from ..values.counting import BatchSize
from ..values.outcomes import COMPLETED, LostLease, Outcome, error_entry, summary
from ..values.records import NEVER, Attempt, LeaseRef, Noted
from .dispatcher import EventDispatcher, Observer

if TYPE_CHECKING:
    from ..queue.store import Store


FIRST_SLOW_DELAY, LONGEST_SLOW_DELAY = 10.0, 640.0
"""The seconds until a slow outcome is tried again. The delay doubles after each try."""

TRIES_OF_LARGE_OUTCOME = 3
"""How often the worker tries to write a large outcome before it replaces the outcome by an error."""

LARGE_OUTCOME = 100_000
"""An outcome is large if its result and error have this many characters. A smaller size does not explain a timeout."""

Locked = Callable[[Collection[LeaseRef]], set[int]]
"""Returns the ids of the jobs whose rows another transaction has locked at this moment."""


@dataclass(eq=False)
class SlowOutcome:
    """An outcome that took PostgreSQL too long."""

    attempt: Attempt
    next_try: float
    """When to try it again, by the monotonic clock."""
    tries: int = 1
    others_were_written: bool = False
    """Whether other outcomes were written since the last try. If so, this outcome itself is too slow."""

    def failed(self, now: float) -> None:
        """Note that the last try has failed, and set the time of the next try."""
        self.tries += self.others_were_written
        self.others_were_written = False
        self.next_try = now + min(FIRST_SLOW_DELAY * 2 ** (self.tries - 1), LONGEST_SLOW_DELAY)
        if self.tries >= TRIES_OF_LARGE_OUTCOME and size_of_outcome(self.attempt.outcome) >= LARGE_OUTCOME:
            self.attempt = self.attempt._replace(outcome=_too_slow(self.attempt, self.tries))
            self.next_try = now


def size_of_outcome(outcome: Outcome) -> int:
    """The number of characters in the outcome's result, error and notes."""
    error, text_size = outcome.error, len(outcome.result or "") + len(outcome.notes or "")
    return text_size + (len(error["message"]) + len(error["traceback"]) if error else 0)


def _too_slow(attempt: Attempt, tries: int) -> Outcome:
    """The failure that replaces a large outcome, because PostgreSQL never writes it in time."""
    size = size_of_outcome(attempt.outcome)
    error = OperationalError(
        f"The attempt was '{attempt.outcome.status}', but PostgreSQL did not write this outcome of {size:,} characters "
        f"in time, though it was tried {tries} times and others were written."
    )
    entry = error_entry(
        error,
        attempt=attempt.job.attempt,
        worker=attempt.worker,
        duration_ms=attempt.duration_ms,
        wait_ms=attempt.wait_ms,
    )
    return Outcome("failed", last_error=summary(error), error=entry)


LOCKED_CHECK_SECONDS = 1.0
"""Seconds between two checks whether rows are still locked."""

MOST_CHARACTERS_SETTLED = 16_000_000
"""The most characters of results and errors in one statement, unless a single outcome has more."""

MOST_CHARACTERS_WAITING = 4 * MOST_CHARACTERS_SETTLED
"""If more characters of results and errors than this wait after a failure, the worker claims no more jobs."""


class PendingOutcomes:
    """The outcomes that wait to be written. Used only by the control loop's thread, with monotonic times."""

    def __init__(self) -> None:
        self.next_check = NEVER
        """When to check which rows are locked; `NEVER` if no check is needed."""
        self.has_more = False
        """Whether the worker should claim no more jobs, because too many outcomes wait."""
        self.is_slow_alone = False
        """Whether the last batch was a single slow outcome, which must be sent alone."""
        self._waiting: list[Attempt] = []
        self.aside: list[Attempt] = []  # attempts whose jobs' rows are locked
        self.slow: list[SlowOutcome] = []
        self._batch_size = BatchSize()
        self._sent_attempts: list[Attempt] = []  # the attempts whose outcomes were sent, and not answered yet
        self._sent_slow_outcome: SlowOutcome | None = None  # the slow outcome that was sent, and not answered yet

    @property
    def attempts(self) -> list[Attempt]:
        return self._waiting + self.aside + [slow_outcome.attempt for slow_outcome in self.slow]

    def refs(self) -> set[LeaseRef]:
        return {attempt.job.ref for attempt in self.attempts}

    @property
    def due_at(self) -> float:
        """When to send outcomes: 0 if outcomes can be sent now, `NEVER` if there are none."""
        return 0.0 if self._waiting else min(self.next_check, *(slow.next_try for slow in self.slow), NEVER)

    def add(self, attempts: Iterable[Attempt]) -> None:
        self._waiting += attempts

    def next_batch(self, locked: Locked, now: float) -> list[Attempt]:
        """Choose the attempts whose outcomes to send now. They stay in this object until `answered` is called."""
        if self.next_check <= now:
            self._set_locked_aside(locked)
        self.has_more = self.has_more and bool(self._waiting)
        self._sent_slow_outcome = self._due_slow(locked, now) if self.slow else None
        self.is_slow_alone = self._sent_slow_outcome is not None
        self._sent_attempts = [self._sent_slow_outcome.attempt] if self._sent_slow_outcome else self._batch()
        return self._sent_attempts

    def answered(self) -> None:
        """Note that the last batch was answered, and remove its attempts."""
        sent_attempts, self._sent_attempts = self._sent_attempts, []
        if self._sent_slow_outcome:
            self.slow.remove(self._sent_slow_outcome)
            self._sent_slow_outcome = None
        elif sent_attempts:
            self._waiting = self._waiting[len(sent_attempts) :]
            self._batch_size.succeeded()
            for slow_outcome in self.slow:
                slow_outcome.others_were_written = True
        self.has_more = bool(self._waiting)

    def check_now(self) -> None:
        """Check at once whether the rows of set-aside outcomes are still locked."""
        if self.aside:
            self.next_check = 0.0

    def failed(self, *, alone: bool, timed_out: bool, now: float) -> None:
        """Note that the statement failed. The next batch first checks which rows are locked.

        alone: whether the exchange had no claim, so that the claim cannot be the cause. timed_out: whether the database
        could be reached, but took too long.
        """
        if self._waiting:
            self.next_check = 0.0
        self.has_more = sum(size_of_outcome(attempt.outcome) for attempt in self._waiting) > MOST_CHARACTERS_WAITING
        sent_attempts, self._sent_attempts = self._sent_attempts, []
        slow_outcome, self._sent_slow_outcome = self._sent_slow_outcome, None
        if slow_outcome:
            if timed_out:
                slow_outcome.failed(now)
        elif sent_attempts and alone:
            self._batch_size.failed(len(sent_attempts))
            if timed_out and len(sent_attempts) == 1:
                self._waiting.remove(sent_attempts[0])
                logs.outcome_slow(sent_attempts[0].job, sent_attempts[0].outcome, FIRST_SLOW_DELAY)
                self.slow.append(SlowOutcome(sent_attempts[0], now + FIRST_SLOW_DELAY))

    def _due_slow(self, locked: Locked, now: float) -> SlowOutcome | None:
        """Return the slow outcome to send now; `None` if no slow outcome is due, or if its row is locked.

        Between two tries of a slow outcome, the other waiting outcomes are written.
        """
        for slow_outcome in self.slow:
            if slow_outcome.next_try <= now and (slow_outcome.others_were_written or not self._waiting):
                if not locked([slow_outcome.attempt.job.ref]):
                    return slow_outcome
                slow_outcome.next_try = time.monotonic() + FIRST_SLOW_DELAY
        return None

    def _batch(self) -> list[Attempt]:
        waiting = self._waiting[: self._batch_size.rows]
        size = 0
        for index, attempt in enumerate(waiting):
            if attempt.outcome is not COMPLETED:
                size += size_of_outcome(attempt.outcome)
                if size > MOST_CHARACTERS_SETTLED and index:
                    return waiting[:index]
        return waiting

    def _set_locked_aside(self, locked: Locked) -> None:
        attempts = self.aside + self._waiting
        locked_ids = locked([attempt.job.ref for attempt in attempts])
        if newly_locked_ids := [attempt.job.id for attempt in self._waiting if attempt.job.id in locked_ids]:
            logs.rows_locked(self._waiting[0].worker, newly_locked_ids[0], len(newly_locked_ids))
        self._waiting = [attempt for attempt in attempts if attempt.job.id not in locked_ids]
        self.aside = [attempt for attempt in attempts if attempt.job.id in locked_ids]
        self.next_check = time.monotonic() + LOCKED_CHECK_SECONDS if locked_ids else NEVER


EVENTS: dict[str, type[AttemptsEnded]] = {
    "completed": AttemptsCompleted,
    "scheduled": AttemptsRetrying,
    "failed": AttemptsFailed,
    "discarded": AttemptsDiscarded,
}
"""The class of event for an accepted outcome, by the outcome's status."""


DUPLICATE = "an outcome of this attempt came before"
"""The reason in the log line when a second outcome of the same attempt is dropped."""


class OutcomeReports:
    """Sends the events about written outcomes. Used only by the control loop's thread."""

    def __init__(
        self,
        dispatcher: EventDispatcher,
        observers: Sequence[Observer],
        *,
        remembered_attempts: int = 0,
        not_held_reason: str = "",
    ) -> None:
        """remembered_attempts: how many attempts to remember, so that a second outcome of an attempt is dropped.

        not_held_reason: for the log line if an outcome is dropped although its lease is valid: see `Store.guards`.
        """
        self.lost: list[Attempt] = []
        """Attempts whose leases had ended before the settle, and about which no event was sent yet."""
        self._dispatcher = dispatcher
        self._observers = observers
        self._remembered_attempts, self._not_held_reason = remembered_attempts, not_held_reason
        self._newer_refs: set[LeaseRef] = set()
        self._older_refs: set[LeaseRef] = set()

    def report(
        self, attempts: list[Attempt], settled: Collection[LeaseRef], refused: Mapping[LeaseRef, Outcome]
    ) -> None:
        """Send the events of accepted outcomes, and put attempts whose leases had ended into `lost`.

        refused: for outcomes that PostgreSQL refused, the outcomes that were written instead.
        """
        attempts_by_event: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        duplicates: list[Attempt] = []
        for sent_attempt in attempts:
            ref = sent_attempt.job.ref
            if ref not in settled and (ref in self._newer_refs or ref in self._older_refs):
                duplicates.append(sent_attempt)
                continue
            attempt = sent_attempt._replace(outcome=refused[ref]) if ref in refused else sent_attempt
            event_class = EVENTS[attempt.outcome.status] if attempt.is_written or ref in settled else LeasesLost
            attempts_by_event[event_class].append(attempt)
        self.lost += attempts_by_event.pop(LeasesLost, [])
        self._send(attempts_by_event)
        if duplicates:
            self._dispatcher.send(OutcomesDropped(duplicates, DUPLICATE))

    def report_lost(self, store: "Store") -> None:
        """Find out why the leases in `lost` had ended, and send the events. Store the errors of cancelled attempts."""
        leases = store.lost_leases(attempt.job.ref for attempt in self.lost)
        cancelled = {ref for ref, lease in leases.items() if lease.cancel_reason is not None}
        ended_by_cancel = [attempt for attempt in self.lost if attempt.job.ref in cancelled]
        store.append_cancelled_errors(attempt.settlement for attempt in ended_by_cancel)
        late_notes = [  # `settle` could not write these notes, because the cancel has raised the lease by 1
            Noted(attempt.job.id, attempt.job.lease + 1, attempt.started, attempt.outcome.notes)
            for attempt in ended_by_cancel
            if attempt.outcome.notes is not None
        ]
        if late_notes:
            store.note_attempts(late_notes)
        attempts_by_event: defaultdict[type[AttemptsEnded], list[Attempt]] = defaultdict(list)
        not_held: list[Attempt] = []
        for sent_attempt in self.lost:
            lease = leases.get(sent_attempt.job.ref)
            if self._not_held_reason and lease is None:  # the lease is valid, so another process holds the job
                not_held.append(sent_attempt)
                continue
            event_class, attempt = ended_otherwise(sent_attempt, lease)
            attempts_by_event[event_class].append(attempt)
        self.lost = []
        self._send(attempts_by_event)
        if not_held:
            self._dispatcher.send(OutcomesDropped(not_held, self._not_held_reason))

    def _send(self, attempts_by_event: Mapping[type[AttemptsEnded], list[Attempt]]) -> None:
        for event_class, attempts in attempts_by_event.items():
            for observer in self._observers:
                observer.ended(event_class, attempts)
            self._dispatcher.send(event_class(attempts))
            if self._remembered_attempts:  # in two sets, of which the older is dropped when the newer is full
                self._newer_refs.update(attempt.job.ref for attempt in attempts)
                if len(self._newer_refs) >= self._remembered_attempts:
                    self._newer_refs, self._older_refs = set(), self._newer_refs


def ended_otherwise(attempt: Attempt, lease: LostLease | None) -> tuple[type[AttemptsEnded], Attempt]:
    """Return the class of event, and the attempt with its real outcome, if its lease had ended before the settle."""
    if lease is None:
        return LeasesLost, attempt
    if lease.cancel_reason is not None:
        return AttemptsCancelled, attempt._replace(outcome=Outcome("discarded", last_error=lease.cancel_reason))
    written_status = lease.written_status(attempt.outcome)
    if written_status == attempt.outcome.status:  # an earlier settle has written it, and the answer was lost
        return EVENTS[written_status], attempt
    if written_status == "failed":  # PostgreSQL had refused the outcome, and a failure was written instead
        return EVENTS[written_status], attempt._replace(outcome=Outcome("failed", last_error=lease.last_error))
    if lease.is_completed:  # the task has completed its job itself, and the answer to the commit was lost
        return AttemptsCompleted, attempt._replace(outcome=COMPLETED)
    return LeasesLost, attempt

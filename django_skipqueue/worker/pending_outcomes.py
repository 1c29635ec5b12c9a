"""The outcomes that wait to be written.

Invariant: an attempt stays here from the time the pool returns it until the database has accepted or rejected its
outcome. No outcome delays the others: if its row is locked, or if it takes too long even alone, it waits apart.
"""

import time
from collections.abc import Iterable

from ..events import logs
from ..values.batch_size import BatchSize
from ..values.outcomes import COMPLETED
from ..values.records import Attempt, LeaseRef
from ..values.times import NEVER
from .slow_outcomes import Locked, SlowOutcomes, size_of

INTERVAL = 1.0
"""Seconds between two checks of the rows that were locked."""

BATCH_SIZE = 16_000_000
"""Characters of results and errors in one statement, unless a single outcome has more."""

MOST_SIZE = 4 * BATCH_SIZE
"""Characters of results and errors that may wait after a failure before the worker claims no more."""


class PendingOutcomes:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_look = NEVER
        """When to check which rows are locked; infinity if no check is needed."""
        self.has_more = False
        """Whether the worker should claim no more: the last batch left outcomes, or many wait after a failure."""
        self._waiting: list[Attempt] = []
        self._aside: list[Attempt] = []
        self._slow = SlowOutcomes()
        self._batch_size = BatchSize()
        self._sent: list[Attempt] = []  # those in the statement under way: the first that wait, or a slow one
        self._tried: Attempt | None = None  # the slow one in the statement under way

    @property
    def attempts(self) -> list[Attempt]:
        return self._waiting + self._aside + self._slow.attempts

    def refs(self) -> set[LeaseRef]:
        return {attempt.job.ref for attempt in self.attempts}

    def is_due(self, now: float) -> bool:
        return bool(self._waiting) or self.next_turn <= now

    @property
    def next_turn(self) -> float:
        return min(self.next_look, self._slow.next_try) if self._slow else self.next_look

    def add(self, attempts: Iterable[Attempt]) -> None:
        self._waiting += attempts

    def next_batch(self, locked: Locked, now: float) -> list[Attempt]:
        """Choose the attempts to send now. `locked` returns the ids of locked rows, and is called only when needed.

        They stay in here until `answered` is called.
        """
        if self.next_look <= now:
            self._set_locked_aside(locked)
        self.has_more = self.has_more and bool(self._waiting)
        self._tried = self._slow.due(locked, now, others_wait=bool(self._waiting)) if self._slow else None
        self._sent = [self._tried] if self._tried else self._batch()
        return self._sent

    @property
    def is_slow_alone(self) -> bool:
        """Whether the batch is one slow outcome, which must be sent alone."""
        return self._tried is not None

    def answered(self) -> None:
        sent, self._sent = self._sent, []
        if self._tried:
            self._slow.remove(self._tried)
        elif sent:
            self._waiting = self._waiting[len(sent) :]
            self._batch_size.succeeded()
            self._slow.note_others()
        self.has_more = bool(self._waiting)

    def look_now(self) -> None:
        if self._aside:
            self.next_look = 0.0

    def failed(self, *, alone: bool, timed_out: bool, now: float) -> None:
        """Note that the statement failed. The next batch first checks which rows are locked.

        alone: the statement had no claim that may have been the cause. timed_out: the database worked, but took too
        long.
        """
        if self._waiting:
            self.next_look = 0.0
        self.has_more = sum(size_of(attempt.outcome) for attempt in self._waiting) > MOST_SIZE
        sent, self._sent = self._sent, []
        if self._tried:
            if timed_out:
                self._slow.failed(self._tried, now)
        elif sent and alone:
            self._batch_size.failed(len(sent))
            if timed_out and len(sent) == 1:
                self._waiting.remove(sent[0])
                self._slow.add(sent[0], now)

    def _batch(self) -> list[Attempt]:
        waiting = self._waiting[: self._batch_size.rows]
        size = 0
        for index, attempt in enumerate(waiting):
            if attempt.outcome is not COMPLETED:
                size += size_of(attempt.outcome)
                if size > BATCH_SIZE and index:
                    return waiting[:index]
        return waiting

    def _set_locked_aside(self, locked: Locked) -> None:
        attempts = self._aside + self._waiting
        ids = locked([attempt.job.ref for attempt in attempts])
        if new := [attempt.job.id for attempt in self._waiting if attempt.job.id in ids]:
            logs.rows_locked(self._waiting[0].worker, new[0], len(new))
        self._waiting = [attempt for attempt in attempts if attempt.job.id not in ids]
        self._aside = [attempt for attempt in attempts if attempt.job.id in ids]
        self.next_look = time.monotonic() + INTERVAL if ids else NEVER

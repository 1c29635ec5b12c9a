"""The outcomes that wait to be written.

Invariant: an attempt is here from when it comes out of the pool until the database has answered for it. No outcome
keeps others from being written: one whose row somebody keeps locked, or that takes too long even alone, waits aside.
"""

import time
from collections.abc import Iterable

from ..events import logs
from ..values.outcomes import COMPLETED
from ..values.records import Attempt, LeaseRef
from .batch_size import BatchSize
from .slow_outcomes import Locked, SlowOutcomes, size_of

INTERVAL = 1.0
"""Seconds between two looks whether the rows of those aside are free."""

BATCH_SIZE = 16_000_000
"""Characters of results and errors that are sent together, unless a single outcome has more."""


MOST_SIZE = 4 * BATCH_SIZE
"""Characters of results and errors that may wait while nothing is written."""


class PendingOutcomes:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_look = float("inf")
        """When to find out which rows are locked; infinity: there is no reason to."""
        self.has_more = False
        """Whether so much waits that nothing should be added: more than was sent, or, after a failure, far more."""
        self._waiting: list[Attempt] = []
        self._aside: list[Attempt] = []
        self._slow = SlowOutcomes()
        self._batch_size = BatchSize()
        self._sent: list[Attempt] = []  # what is on its way: the first of those that wait,
        self._tried: Attempt | None = None  # or one that is slow

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside) + len(self._slow)

    @property
    def attempts(self) -> list[Attempt]:
        """All whose outcomes are in here."""
        return self._waiting + self._aside + self._slow.attempts

    def refs(self) -> set[LeaseRef]:
        """The leases of all that is in here."""
        return {attempt.job.ref for attempt in self.attempts}

    def is_due(self, now: float) -> bool:
        """Whether to go to the database for what is in here."""
        return bool(self._waiting) or self.next_turn <= now

    @property
    def next_turn(self) -> float:
        """When to do that even if nothing finishes."""
        return min(self.next_look, self._slow.next_try) if self._slow else self.next_look

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Attempts that came out of the pool."""
        self._waiting += attempts

    def next_batch(self, locked: Locked, now: float) -> list[Attempt]:
        """What to send now. `locked` says of which jobs somebody has the rows locked; it is asked if there is reason.

        All of it stays in here until it is `answered`.
        """
        if self.next_look <= now:
            self._set_locked_aside(locked)
        self.has_more = self.has_more and bool(self._waiting)
        self._tried = self._slow.due(locked, now, others_wait=bool(self._waiting)) if self._slow else None
        self._sent = [self._tried] if self._tried else self._batch()
        return self._sent

    @property
    def is_slow_alone(self) -> bool:
        """Whether what is to be sent is known to be slow, so that nothing should go with it."""
        return self._tried is not None

    def answered(self) -> list[Attempt]:
        """Take out what was sent: it is written, or never will be."""
        sent, self._sent = self._sent, []
        if self._tried:
            self._slow.remove(self._tried)
        elif sent:
            self._waiting = self._waiting[len(sent) :]
            self._batch_size.succeeded()
            self._slow.note_others()
        self.has_more = bool(self._waiting)
        return sent

    def look_now(self) -> None:
        """See at once which rows are free again."""
        if self._aside:
            self.next_look = 0.0

    def failed(self, *, alone: bool, timed_out: bool, now: float) -> None:
        """Note that there was no answer: the next time, see first whether that is because somebody has rows locked.

        alone: no claim was sent with it that may be the reason. timed_out: the database was there, and took too long.
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
        """The first of those that wait: not too many, and not too large together."""
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
        self.next_look = time.monotonic() + INTERVAL if ids else float("inf")

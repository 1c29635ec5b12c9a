"""The outcomes that wait to be written.

Invariant: an attempt is here from when it comes out of the pool until the database has answered for it. One whose row
somebody keeps locked waits aside: sent, it would fail all that is sent with it, again and again.
"""

import time
from collections.abc import Callable, Collection, Iterable

from .. import logs
from ..records import Attempt, Lease

INTERVAL = 1.0
"""Seconds between two looks whether the rows of those aside are free."""


class Outbox:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_look = float("inf")
        """When to find out which rows are locked; infinity: there is no reason to."""
        self._waiting: list[Attempt] = []
        self._aside: list[Attempt] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    def leases(self) -> set[Lease]:
        """Of all that is in here."""
        return {(attempt.job.id, attempt.job.lease) for attempt in self._waiting + self._aside}

    def is_due(self, now: float) -> bool:
        """Whether to go to the database for what is in here."""
        return bool(self._waiting) or self.next_look <= now

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Attempts that came out of the pool."""
        self._waiting += attempts

    def to_send(self, locked: Callable[[Collection[Lease]], set[int]], now: float) -> list[Attempt]:
        """What to send now. `locked` says of which jobs somebody has the rows locked; it is asked if there is reason.

        All of it stays in here until it is `answered`.
        """
        if self.next_look <= now:
            self._put_aside(locked)
        return self._waiting

    def answered(self) -> list[Attempt]:
        """Take out what was sent: it is written, or never will be."""
        answered, self._waiting = self._waiting, []
        return answered

    def look_now(self) -> None:
        """See at once which rows are free again."""
        if self._aside:
            self.next_look = 0.0

    def failed(self) -> None:
        """Note that there was no answer: the next time, see first whether that is because somebody has rows locked."""
        if self._waiting:
            self.next_look = 0.0

    def _put_aside(self, locked: Callable[[Collection[Lease]], set[int]]) -> None:
        attempts = self._aside + self._waiting
        ids = locked([(attempt.job.id, attempt.job.lease) for attempt in attempts])
        if new := [attempt.job.id for attempt in self._waiting if attempt.job.id in ids]:
            logs.rows_locked(self._waiting[0].worker, new[0], len(new))
        self._waiting = [attempt for attempt in attempts if attempt.job.id not in ids]
        self._aside = [attempt for attempt in attempts if attempt.job.id in ids]
        self.next_look = time.monotonic() + INTERVAL if ids else float("inf")

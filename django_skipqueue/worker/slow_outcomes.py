"""The outcomes that took PostgreSQL too long. Each is sent alone.

Invariant: every outcome is written in the end. A small one is tried until it succeeds. A large one that keeps timing
out, while others succeed, is replaced by an error that says so.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from django.db import OperationalError

from ..events import logs
from ..values.outcomes import Outcome, error_entry, summary
from ..values.records import Attempt, LeaseRef
from ..values.times import NEVER

FIRST_REST, LONGEST_REST = 10.0, 640.0
"""Seconds until an outcome is tried again, doubled after each try."""

TRIES = 3
"""How often a large outcome is tried before it is replaced."""

LARGE = 100_000
"""Characters of result and error. The size of an outcome with fewer does not explain a timeout."""

Locked = Callable[[Collection[LeaseRef]], set[int]]
"""Returns the ids of the jobs whose rows another transaction has locked at this moment."""


@dataclass(eq=False)
class Slow:
    attempt: Attempt
    next_try: float
    """In monotonic seconds."""
    tries: int = 1
    others_were_written: bool = False
    """Whether others were written since the last try: then the database works, and this outcome is the cause."""


class SlowOutcomes:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._slow: list[Slow] = []

    def __len__(self) -> int:
        return len(self._slow)

    @property
    def attempts(self) -> list[Attempt]:
        return [slow.attempt for slow in self._slow]

    @property
    def next_try(self) -> float:
        return min((slow.next_try for slow in self._slow), default=NEVER)

    def add(self, attempt: Attempt, now: float) -> None:
        logs.outcome_slow(attempt.job, attempt.outcome, FIRST_REST)
        self._slow.append(Slow(attempt, now + FIRST_REST))

    def due(self, locked: Locked, now: float, *, others_wait: bool) -> Attempt | None:
        """The outcome to send now, alone; `None` if no try is due or the rows are locked.

        After each try of a slow outcome, the other outcomes that wait are written first.
        """
        for slow in self._slow:
            if slow.next_try <= now and (slow.others_were_written or not others_wait):
                job = slow.attempt.job
                if not locked([job.ref]):
                    return slow.attempt
                slow.next_try = time.monotonic() + FIRST_REST
        return None

    def note_others(self) -> None:
        for slow in self._slow:
            slow.others_were_written = True

    def remove(self, attempt: Attempt) -> None:
        self._slow = [slow for slow in self._slow if slow.attempt is not attempt]

    def failed(self, attempt: Attempt, now: float) -> None:
        slow = next(slow for slow in self._slow if slow.attempt is attempt)
        slow.tries += slow.others_were_written
        slow.others_were_written = False
        slow.next_try = now + min(FIRST_REST * 2 ** (slow.tries - 1), LONGEST_REST)
        if slow.tries >= TRIES and size_of(attempt.outcome) >= LARGE:
            slow.attempt = attempt._replace(outcome=_too_slow(attempt, slow.tries))
            slow.next_try = now


def size_of(outcome: Outcome) -> int:
    """Characters of its result, its error and its notes."""
    error, texts = outcome.error, len(outcome.result or "") + len(outcome.notes or "")
    return texts + (len(error["message"]) + len(error["traceback"]) if error else 0)


def _too_slow(attempt: Attempt, tries: int) -> Outcome:
    size = size_of(attempt.outcome)
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

"""The outcomes that took PostgreSQL too long, each sent alone.

Invariant: an outcome is written in the end. A large one that goes on taking too long while others are written is
replaced by an error that says so; a small one is tried until it is written.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from django.db import OperationalError

from ..events import logs
from ..values.outcomes import Outcome, error_entry, summary
from ..values.records import Attempt, LeaseRef

FIRST_REST, LONGEST_REST = 10.0, 640.0
"""Seconds until one is tried again; twice as many after each time."""

TRIES = 3
"""How often a large one is tried before it is replaced."""

LARGE = 100_000
"""Characters of results and errors. An outcome with fewer is not to blame when it takes long."""

Locked = Callable[[Collection[LeaseRef]], set[int]]
"""Says of which jobs somebody has the rows locked this moment."""


@dataclass(eq=False)
class Slow:
    """One of them."""

    attempt: Attempt
    next_try: float
    """In monotonic seconds."""
    tries: int = 1
    others_were_written: bool = False
    """Since the last try: the database works, so it is this outcome that does not."""


class SlowOutcomes:
    """Used by the control loop's thread. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._slow: list[Slow] = []

    def __len__(self) -> int:
        return len(self._slow)

    @property
    def attempts(self) -> list[Attempt]:
        """All that are in here."""
        return [slow.attempt for slow in self._slow]

    @property
    def next_try(self) -> float:
        """When the next one is due."""
        return min((slow.next_try for slow in self._slow), default=float("inf"))

    def add(self, attempt: Attempt, now: float) -> None:
        """This one took too long."""
        logs.outcome_slow(attempt.job, attempt.outcome, FIRST_REST)
        self._slow.append(Slow(attempt, now + FIRST_REST))

    def due(self, locked: Locked, now: float, *, others_wait: bool) -> Attempt | None:
        """The one to send now, alone, if nobody has its row locked. Those that wait come first after each try."""
        for slow in self._slow:
            if slow.next_try <= now and (slow.others_were_written or not others_wait):
                job = slow.attempt.job
                if not locked([job.ref]):
                    return slow.attempt
                slow.next_try = time.monotonic() + FIRST_REST
        return None

    def note_others(self) -> None:
        """Other outcomes were written."""
        for slow in self._slow:
            slow.others_were_written = True

    def remove(self, attempt: Attempt) -> None:
        """The database has answered for it."""
        self._slow = [slow for slow in self._slow if slow.attempt is not attempt]

    def failed(self, attempt: Attempt, now: float) -> None:
        """It took too long again."""
        slow = next(slow for slow in self._slow if slow.attempt is attempt)
        slow.tries += slow.others_were_written
        slow.others_were_written = False
        slow.next_try = now + min(FIRST_REST * 2 ** (slow.tries - 1), LONGEST_REST)
        if slow.tries >= TRIES and size_of(attempt.outcome) >= LARGE:
            slow.attempt = attempt._replace(outcome=_too_slow(attempt, slow.tries))
            slow.next_try = now


def size_of(outcome: Outcome) -> int:
    """Characters of its result and its error."""
    error = outcome.error
    return len(outcome.result or "") + (len(error["message"]) + len(error["traceback"]) if error else 0)


def _too_slow(attempt: Attempt, tries: int) -> Outcome:
    size = size_of(attempt.outcome)
    error = OperationalError(
        f"The job came to '{attempt.outcome.status}', but PostgreSQL did not write this outcome of {size:,} characters "
        f"in time, though it was tried {tries} times and others were written."
    )
    entry = error_entry(error, attempt=attempt.job.attempt, worker=attempt.worker, duration_ms=attempt.duration_ms)
    return Outcome("failed", last_error=summary(error), error=entry)

"""Writes what the attempts of a worker note while they run, for all of them in one statement.

Invariant: a write delays no outcome. It skips rows that are locked, and what it could not write is in the outcome of
the attempt. If the worker dies, a second of progress and five seconds of log lines are lost at most.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence

from django.db import Error

from ..queue.store import Store
from ..values.records import NEVER, Attempt, Noted
from .attempts.running_attempt import RunningAttempt
from .loop import Service
from .notes import AttemptNotes

INTERVAL = 0.5
"""Seconds between two looks at the attempts."""

BATCH_SIZE = 1_000_000
"""Characters in one statement, unless a single attempt has more."""

REFUSED_INTERVAL = 10.0
"""Seconds until the next look after PostgreSQL has refused a statement."""


class WriteNotes(Service):
    """Sends no statement unless an attempt that has run for a second has noted something new."""

    name = "write_notes"

    def __init__(self, store: Store, attempts: Callable[[], Collection[RunningAttempt]]) -> None:
        self._store = store
        self._attempts = attempts
        self._next_look = 0.0
        self._late: list[Noted] = []  # noted after the task has completed its job itself

    @property
    def due_at(self) -> float:
        return self._next_look if self._late or self._attempts() else NEVER

    def add_late(self, attempt: Attempt) -> None:
        """Write what an attempt has noted after its task had completed the job itself. That raised the lease by one."""
        if attempt.outcome.notes is not None:
            job_id, lease = attempt.job.ref
            self._late.append(Noted(job_id, lease + 1, attempt.started, attempt.outcome.notes))

    def run(self, now: float) -> None:
        self._next_look = now + INTERVAL
        self._write(self._take(now, [notes for notes in self._noted() if notes.is_due(now)]))

    def write_all(self) -> None:
        """Write what the running attempts have noted, before they are released."""
        self._write(self._take(time.monotonic(), [notes for notes in self._noted() if notes.has_changed]))

    def refused(self, error: BaseException) -> None:
        self._next_look = time.monotonic() + REFUSED_INTERVAL

    def _noted(self) -> Iterator[AttemptNotes]:
        for running in list(self._attempts()):
            if running.noted is not None and not running.is_stuck:
                yield running.noted

    def _take(self, now: float, noted: Sequence[AttemptNotes]) -> dict[Noted, AttemptNotes]:
        """The notes of these attempts, up to `BATCH_SIZE`. The others are due at the next look, which is at once."""
        taken: dict[Noted, AttemptNotes] = {}
        size = 0
        for notes in noted:
            if size > BATCH_SIZE:
                self._next_look = now
                break
            text = notes.take(now)
            size += len(text)
            taken[Noted(*notes.ref, notes.started, text)] = notes
        return taken

    def _write(self, taken: dict[Noted, AttemptNotes]) -> None:
        late, self._late = self._late, []
        if not taken and not late:
            return
        try:
            written = self._store.note_attempts([*late, *taken])
        except Error:
            for notes in taken.values():
                notes.not_written()
            raise
        for noted, notes in taken.items():
            if noted.job_id not in written:  # locked, or the lease is lost
                notes.not_written()

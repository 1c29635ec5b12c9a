"""In a process of Celery's pool `prefork`: gives the outcome of a job to the main process, which sends it.

Invariant: the outcome comes with the end of its task, or the process has died and the job's message is rejected.
"""

import mmap
from typing import Any

from ..relay import wire
from ..values.records import Attempt

MOST_BYTES = 15_000
"""Of an outcome that the main process gets. A longer one takes billiard several writes into a pipe. If Celery loses its
connection between them, or the process dies, nobody reads that pipe to its end."""


class Gate:
    """Whether the main process takes outcomes: not while it connects to the broker again. Forked processes share it."""

    def __init__(self) -> None:
        self._is_shut = mmap.mmap(-1, 1)

    @property
    def is_open(self) -> bool:
        return not self._is_shut[0]

    @is_open.setter
    def is_open(self, value: bool) -> None:
        self._is_shut[0] = not value


class ReturnPath:
    """One for each process, which runs one task at once.

    The task returns nothing: Celery shows what a task returns in logs, events and signals, cut to a length. So the
    outcome takes the place of that text on the way to the main process.
    """

    def __init__(self, task: Any, gate: Gate) -> None:
        self._gate = gate
        self._task = task
        self._trace = task.__trace__
        task.__trace__ = self._traced
        self._outcome: wire.EncodedOutcome | None = None

    def give(self, attempt: Attempt, home: str) -> bool:
        """Give this outcome to the main process at the end of the task. Returns whether that takes it now."""
        outcome = wire.encode_outcome(attempt, home)
        is_taken = self._gate.is_open and outcome.size <= MOST_BYTES and self._task.__trace__ == self._traced
        if is_taken:
            self._outcome = outcome
        return is_taken

    def _traced(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the task as Celery does. Returns its result, its failure, its seconds, and what the main process gets."""
        self._outcome = None
        result, failure, seconds, text = self._trace(*arguments)
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return result, failure, seconds, text
        return result, None, seconds, outcome  # a receiver of Celery's signals may have failed: the job has run

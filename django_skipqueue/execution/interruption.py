"""How the attempts of a worker are interrupted: by their timeouts, or by a cancel.

Invariant: an attempt whose time is over is interrupted, and one that does not end then is found to be stuck.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import Error as DatabaseError

from ..exceptions import JobCancelled, JobInterrupted, JobTimeout
from ..values.records import ClaimedJob, LeaseRef
from .running_attempt import NEVER, RunningAttempt

STUCK_AFTER = 5.0
"""Seconds in which an interrupted attempt must end; after that it is stuck."""

STACK_DEPTH = 8
"""How many of a thread's calls are told where one line is for all of them."""


@dataclass(eq=False, slots=True)
class Shield:
    """A block in which nothing is raised."""

    is_up: bool
    """Whoever sets this to False in the block keeps the shield beyond its end, until `unshield`."""


class Interrupter:
    """The attempts that one worker runs.

    `run`, `coroutine` and `uninterrupted` are called in the threads of the attempts, everything else by the control
    loop. `on_new` has it look at `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[LeaseRef, RunningAttempt] = {}
        self._limited: dict[LeaseRef, RunningAttempt] = {}  # of those, the ones that have a `due_at`
        self.interrupted_at = float("inf")
        """Since when something was raised in an attempt, in monotonic seconds."""

    def run(self, attempt: RunningAttempt, call: Callable[[], Any]) -> Any:
        """Call in this thread; `JobTimeout` is raised in it when its time is over, `JobCancelled` by `cancel`.

        The exception may come between any two instructions until the attempt has ended, or has absorbed it. It comes
        once, so that a second `absorb` is sure to return.
        """
        result, error, interruption = None, None, None
        try:
            self._begin(attempt)
            result = call()
        except BaseException as raised:
            error = raised
        try:
            if not attempt.end():
                interruption = attempt.absorb()
        except JobInterrupted:
            interruption = attempt.absorb()
        self._forget(attempt)
        if error is None:
            return result
        try:
            if interruption is not None and isinstance(error, DatabaseError):
                raise interruption.error from error  # which it has caused, in the middle of a statement
            raise error
        finally:
            error = interruption = None  # their tracebacks hold this frame, which would hold them

    @contextmanager
    def coroutine(self, attempt: RunningAttempt) -> Iterator[None]:
        """Within this block the coroutine is cancelled when it is to end, and what `run` raises comes out of it."""
        attempt.coroutine = task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is called by a coroutine)
        self._begin(attempt)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            interruption = attempt.interruption
            if interruption is None or not interruption.is_cancelled or task.uncancel():
                raise
            raise interruption.error.with_traceback(cancelled.__traceback__) from None  # which says where it was
        else:
            interruption = attempt.interruption
            if interruption is not None and interruption.is_cancelled:  # it went on after that, and ended well
                task.uncancel()
        finally:
            attempt.end()
            self._forget(attempt)

    @contextmanager
    def uninterrupted(self) -> Iterator[Shield]:
        """Within this block nothing is raised in this thread's attempt; it may be stuck still.

        Where its time is over meanwhile, the exception is raised at the end of the block. Without effect where no
        attempt runs, where one is in such a block already or was interrupted before, and for coroutines: a cancellation
        does not reach the threads that they have statements run in.
        """
        attempt = self._exposed_here()
        shield = Shield(is_up=attempt is not None)
        if attempt is not None:
            attempt.shield()
        try:
            yield shield
        finally:
            if attempt is not None and shield.is_up and not attempt.unshield():
                attempt.raise_interruption()

    def running(self) -> set[LeaseRef]:
        """The attempts that run, but for those that are stuck."""
        return {attempt.job.ref for attempt in list(self._running.values()) if not attempt.is_stuck}

    def stuck(self) -> list[RunningAttempt]:
        """The attempts that are stuck, and still run."""
        return [attempt for attempt in list(self._running.values()) if attempt.is_stuck]

    @property
    def next_deadline(self) -> float:
        """When to call `enforce` next, in monotonic seconds."""
        return min((attempt.due_at for attempt in list(self._limited.values())), default=NEVER)

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """End this attempt, if it runs, was not interrupted yet and has not completed its job itself."""
        attempt = self._running.get(job.ref)
        if attempt is not None and attempt.interruption is None and attempt.completed is None:
            self._interrupt(attempt, JobCancelled(reason))

    def enforce(self) -> list[tuple[RunningAttempt, str]]:
        """Interrupt the attempts whose time is over; those that did not end in the time of grace, with their stacks."""
        now = time.monotonic()
        stuck = []
        for attempt in list(self._limited.values()):
            if attempt.due_at > now or attempt.has_ended:
                continue
            if attempt.interruption is None:
                self._interrupt(attempt, JobTimeout(f"timed out after {attempt.timeout:g} s"))
            else:
                attempt.is_stuck = True
                self._limited.pop(attempt.job.ref, None)
                stuck.append((attempt, _stack_of(attempt.thread)))
        return stuck

    def _begin(self, attempt: RunningAttempt) -> None:
        """Have the attempt be found by the control loop."""
        ref = attempt.job.ref
        if attempt.timeout is None:
            attempt.expose()
        else:
            attempt.due_at = time.monotonic() + attempt.timeout
            attempt.expose()
            self._limited[ref] = attempt
            self._on_new()
        self._running[ref] = attempt

    def _forget(self, attempt: RunningAttempt) -> None:
        ref = attempt.job.ref
        self._running.pop(ref, None)
        self._limited.pop(ref, None)

    def _exposed_here(self) -> RunningAttempt | None:
        """The attempt of the thread that calls, if something may be raised in it."""
        thread = threading.get_ident()
        for attempt in list(self._running.values()):
            if attempt.thread == thread and attempt.coroutine is None and attempt.is_exposed:
                return attempt
        return None

    def _interrupt(self, attempt: RunningAttempt, error: JobInterrupted) -> None:
        ref = attempt.job.ref
        attempt.due_at = time.monotonic() + STUCK_AFTER
        self._limited[ref] = attempt
        if not attempt.interrupt(error):
            self._limited.pop(ref, None)
        elif attempt.has_harmed_thread:
            self.interrupted_at = min(self.interrupted_at, time.monotonic())


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame else ""


def stacks(only: threading.Thread | None = None) -> list[str]:
    """Of each thread but the one that asks, in a line: its name, and the last calls that it is in, innermost first."""
    frames = sys._current_frames()
    lines = []
    for thread in [only] if only else threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            calls = [f"{call.name} ({call.filename}:{call.lineno})" for call in traceback.extract_stack(frame)]
            lines.append(f"{thread.name} in {', from '.join(reversed(calls[-STACK_DEPTH:]))}")
    return lines

"""Interrupts the attempts of a worker at their timeouts, or when their jobs are cancelled.

Invariant: an attempt whose time is over is interrupted. If it does not end within `STUCK_AFTER`, it counts as stuck.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import Error as DatabaseError

from ...exceptions import JobCancelled, JobInterrupted, JobTimeout
from ...values.records import NEVER, ClaimedJob, LeaseRef
from ...values.tracebacks import formatted_stack
from .running_attempt import RunningAttempt

STUCK_AFTER = 5.0
"""Seconds after an interruption until an attempt that still runs counts as stuck."""

STACK_DEPTH = 8
"""How many calls of a thread are shown in one line."""


@dataclass(eq=False, slots=True)
class Shield:
    """A block in which no interruption is raised."""

    is_up: bool
    """If the block sets this to False, the shield outlasts the block, until `unshield`."""


class Interrupter:
    """The running attempts of one worker.

    `run`, `coroutine` and `uninterrupted` are called in the threads of the attempts, all other methods in that of the
    control loop. `on_new` wakes the control loop, which then reads `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[LeaseRef, RunningAttempt] = {}
        self._limited: dict[LeaseRef, RunningAttempt] = {}  # the running ones with a `due_at`
        self.interrupted_at = NEVER
        """When a thread was first interrupted, in monotonic seconds; infinity if none was."""

    def run(self, attempt: RunningAttempt, call: Callable[..., Any], *arguments: object) -> Any:
        """Call `call` in this thread. Raises `JobTimeout` in it at its timeout, or `JobCancelled` on `cancel`.

        The exception is raised between any two instructions, until the attempt has ended or `absorb` was called. It is
        raised once only, so that a second `absorb` returns.
        """
        result, error, interruption = None, None, None
        try:
            self._begin(attempt)
            result = call(*arguments)
        except BaseException as raised:
            error = raised
        try:
            if not attempt.end():
                interruption = attempt.absorb()
        except JobInterrupted:
            interruption = attempt.absorb()
        finally:
            self._forget(attempt)
        if error is None:
            return result
        try:
            if interruption is not None and isinstance(error, DatabaseError):
                raise interruption.error from error  # caused by the interruption of a statement
            raise error
        finally:
            error = interruption = None  # break the cycle: their tracebacks refer to this frame

    @contextmanager
    def coroutine(self, attempt: RunningAttempt) -> Iterator[None]:
        """Within this block an interruption cancels the coroutine. The block raises the same exceptions as `run`."""
        attempt.coroutine = task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is called by a coroutine)
        self._begin(attempt)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            interruption = attempt.interruption
            if interruption is None or not interruption.is_cancelled or task.uncancel():
                raise
            raise interruption.error.with_traceback(
                cancelled.__traceback__
            ) from None  # the traceback shows where it was
        else:
            interruption = attempt.interruption
            if interruption is not None and interruption.is_cancelled:  # it suppressed the cancellation, and succeeded
                task.uncancel()
        finally:
            attempt.end()
            self._forget(attempt)

    @contextmanager
    def uninterrupted(self) -> Iterator[Shield]:
        """Within this block no interruption is raised in the attempt of this thread.

        The attempt may still become stuck. An interruption during the block is raised at its end. The block has no
        effect if no attempt runs here, if the attempt is in such a block already, or was interrupted before. It has
        none for coroutines either: a cancellation does not reach the threads in which their statements run.
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

    @property
    def attempts(self) -> Collection[RunningAttempt]:
        """The attempts that run, stuck ones included. Copy it before you read it: other threads change it."""
        return self._running.values()

    def running(self) -> set[LeaseRef]:
        return {attempt.job.ref for attempt in list(self._running.values()) if not attempt.is_stuck}

    def stuck(self) -> list[RunningAttempt]:
        return [attempt for attempt in list(self._running.values()) if attempt.is_stuck]

    @property
    def next_deadline(self) -> float:
        """When to call `enforce` next, in monotonic seconds."""
        now = time.monotonic()
        return min((attempt.deadline(now) for attempt in list(self._limited.values())), default=NEVER)

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the attempt of this job, if it runs, was not interrupted yet and has not committed an outcome."""
        attempt = self._running.get(job.ref)
        if attempt is not None and attempt.interruption is None and attempt.completed is None:
            self._interrupt(attempt, JobCancelled(reason))

    def enforce(self) -> list[tuple[RunningAttempt, str]]:
        """Interrupt attempts whose time is over. Returns those newly found stuck, with their stacks."""
        now = time.monotonic()
        stuck = []
        for attempt in list(self._limited.values()):
            if attempt.deadline(now) > now or attempt.has_ended:
                continue
            if attempt.interruption is None:
                self._interrupt(attempt, JobTimeout(f"timed out after {attempt.timeout:g} s"))
            else:
                attempt.is_stuck = True
                self._limited.pop(attempt.job.ref, None)
                stuck.append((attempt, stack_of(attempt.thread)))
        return stuck

    def _begin(self, attempt: RunningAttempt) -> None:
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


def stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return formatted_stack(frame) if frame else ""


def stacks(only: threading.Thread | None = None) -> list[str]:
    """One line for each other thread: its name, and the innermost calls of its stack."""
    frames = sys._current_frames()
    lines = []
    for thread in [only] if only else threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            calls = [f"{call.name} ({call.filename}:{call.lineno})" for call in traceback.extract_stack(frame)]
            lines.append(f"{thread.name} in {', from '.join(reversed(calls[-STACK_DEPTH:]))}")
    return lines

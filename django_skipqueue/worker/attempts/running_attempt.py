"""One attempt while it runs: its thread, its deadline, its interruption, and what the supervisor sees of the attempt.

`Interrupter` interrupts attempts at their timeouts, and when their jobs are cancelled. Invariant: an attempt whose time
is over is interrupted. If the attempt does not end within `STUCK_AFTER`, it counts as stuck.

Invariant: an interruption reaches only the attempt that it is meant for, never a later attempt in the thread.

Two threads may change the state of an attempt at once: the thread of the attempt, and the control loop that interrupts
the attempt. Both use one `dict.pop`, which succeeds in only one of them. A lock would not work: an exception raised
between any two instructions may leave a lock taken.

`RunningJobs` notes the jobs that a worker has started, in memory that the supervisor shares. A claim charges an
attempt. When the worker dies, the jobs in this memory stay charged, and the supervisor releases the rest without a
charge.

Invariant: after the death of a worker this memory has the jobs that were running, and the last job of each idle thread.
The last job may have caused the death, so it is charged too, unless its outcome was written.
"""

import asyncio
import ctypes
import mmap
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from django.db import Error as DatabaseError

from ...exceptions import JobCancelled, JobInterrupted, JobTimeout
from ...values.outcomes import Outcome
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...values.tracebacks import formatted_stack
from ..notes import AttemptNotes

EXPOSED = "exposed"
"""The state in which the control loop may raise an exception in the attempt, between any two instructions."""

LONGEST_CLOCK_STOP = 60.0
"""Seconds for which the clock of an attempt may stop: an attempt must also end if it waits for a call that hangs."""

SHIELDED = "shielded"
"""The state in which the control loop raises nothing, while a connection is opened, commits or rolls back. If the
attempt is interrupted in this state, it raises the exception itself when it leaves the shield."""


@dataclass(eq=False)
class Interruption:
    error: JobInterrupted
    """The exception with which the attempt ends."""
    is_raised: bool = False
    """Whether the exception is set. Not an Event: that has a lock."""
    is_cancelled: bool = False
    """Whether the coroutine was cancelled. Used in its event loop's thread alone."""


class RunningAttempt:
    """An attempt is exposed or shielded until it is interrupted or ends. If it does not end then, it is stuck.

    Times are monotonic seconds.
    """

    __slots__ = (
        "_clock",
        "_kept_back",
        "_unreported",
        "completed",
        "coroutine",
        "database",
        "due_at",
        "exposure",
        "has_ended",
        "interruption",
        "is_stuck",
        "job",
        "noted",
        "started",
        "thread",
        "timeout",
        "worker",
    )

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.timeout: float | None = None
        """Seconds that the attempt may take; `None`: no limit."""
        self.thread = 0
        """The identifier of its thread, or of the thread of its event loop."""
        self.coroutine: asyncio.Task[object] | None = None
        """The task of the event loop, for the attempt of an `async def` task."""
        self.started = 0.0
        self.due_at = NEVER
        """When the attempt is interrupted, if its clock never stops; after the interruption, when it is stuck."""
        self.interruption: Interruption | None = None
        self.completed: Outcome | None = None
        """The outcome that the task itself has committed."""
        self.is_stuck = False
        self.has_ended = False
        self.exposure: dict[str, bool] = {}  # its key is EXPOSED or SHIELDED, for a moment both; empty at the end
        self._clock: tuple[float, float | None] = (0.0, None)
        """For how long the clock stood still, and since when it stands still: one value, for any thread to read."""
        self._unreported = [True]
        self._kept_back: list[Attempt] = []
        self.worker = ""
        self.database = ""
        self.noted: AttemptNotes | None = None
        """The progress and the log lines; `None` until the attempt notes something, which most attempts never do."""

    def take_report(self) -> bool:
        """Claim the right to report the outcome of this attempt. Returns True to the first caller only."""
        try:
            return self._unreported.pop()
        except IndexError:
            return False

    def keep_back(self, attempt: Attempt) -> None:
        """Have this attempt reported once its code has ended, in place of the outcome of the code."""
        self._kept_back.append(attempt)

    def take_kept_back(self) -> Attempt | None:
        """Claim the right to report the attempt that was kept back. Returns it to the first caller only."""
        try:
            return self._kept_back.pop()
        except IndexError:
            return None

    # In the thread of the attempt

    def expose(self) -> None:
        """Allow interruptions from here on, in the calling thread."""
        self.thread = threading.get_ident()
        self.exposure[EXPOSED] = True

    def end(self) -> bool:
        """Allow no interruption from here on. Returns False if the attempt was interrupted before."""
        self.has_ended = True
        if self.exposure.pop(EXPOSED, False):
            return True
        return self.exposure.pop(SHIELDED, False) and self.interruption is None

    def absorb(self) -> Interruption | None:
        """Wait until the control loop has set the exception, and discard it if it has not been raised yet."""
        interruption = self.interruption
        while interruption and not interruption.is_raised:
            time.sleep(0.0001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
        return interruption

    def shield(self) -> None:
        """Allow no interruption until `unshield`. Raises the exception of an earlier interruption."""
        self.exposure[SHIELDED] = True
        if not self.exposure.pop(EXPOSED, False):  # it was interrupted: raise the exception before the block begins
            self.exposure.pop(SHIELDED, False)
            self.raise_interruption()

    def unshield(self) -> bool:
        """Allow interruptions again. Returns False if one came under the shield, or if there was no shield."""
        if SHIELDED not in self.exposure:
            return False
        self.exposure[EXPOSED] = True  # before the pop: the attempt always has one of the two states
        if not self.exposure.pop(SHIELDED, False):
            self.exposure.pop(EXPOSED, False)
            return False
        return True

    def raise_interruption(self) -> NoReturn:
        """Raise the exception of the interruption here, in place of the one set by the control loop."""
        interruption = self.absorb()
        if interruption is None:
            raise JobTimeout("it did not end in time, and was given up")
        raise interruption.error

    def require_in_time(self) -> None:
        """Raise the exception of an interruption, even if the task has caught it. Only in the attempt's thread."""
        if self.interruption and self.thread == threading.get_ident():
            self.raise_interruption()

    def note_completed(self, outcome: Outcome) -> None:
        """Note that the task has committed this outcome itself. Called in the thread of the transaction.

        No interruption may come between the commit and this call: it would keep Django from calling the commit hooks.
        """
        self.completed = outcome
        self.unshield()

    # Under the lock of the query thread

    def stop_clock(self) -> None:
        stood_still, since = self._clock
        self._clock = (stood_still, time.monotonic() if since is None else since)

    def start_clock(self) -> None:
        stood_still, since = self._clock
        if since is not None:
            self._clock = (stood_still + time.monotonic() - since, None)

    # For any thread

    def deadline(self, now: float) -> float:
        """`due_at`, put off by the time for which the clock stood still."""
        if self.interruption is not None:
            return self.due_at
        stood_still, since = self._clock
        return self.due_at + min(stood_still if since is None else stood_still + now - since, LONGEST_CLOCK_STOP)

    def notes(self) -> AttemptNotes:
        if self.noted is None:
            self.noted = AttemptNotes(self.job, worker=self.worker, started=self.started)
        return self.noted

    def with_notes(self, outcome: Outcome) -> Outcome:
        return outcome if self.noted is None else replace(outcome, notes=self.noted.take_all())

    @property
    def error(self) -> JobInterrupted | None:
        return None if self.interruption is None else self.interruption.error

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt was interrupted because the job was cancelled or taken from the worker."""
        return isinstance(self.error, JobCancelled)

    @property
    def has_harmed_thread(self) -> bool:
        """Whether `interrupt` has raised an exception in the thread of the attempt, which may be left in any state."""
        return self.interruption is not None and self.coroutine is None

    # In the thread of the control loop

    def interrupt(self, error: JobInterrupted) -> bool:
        """Interrupt the attempt with this error. Returns False if the attempt has already ended."""
        interruption = self.interruption = Interruption(error)  # before the pop, so that the attempt finds it
        while True:
            if self.exposure.pop(EXPOSED, False):
                if self.coroutine is not None:
                    interruption.is_raised = True  # nothing is set in the thread: the event loop cancels the coroutine
                    self.coroutine.get_loop().call_soon_threadsafe(self._cancel, self.coroutine, interruption)
                    return True
                _raise_in_thread(self.thread, error)
                break
            if self.exposure.pop(SHIELDED, False):
                break
            if self.has_ended:
                self.interruption = None
                break
            # The attempt has left its shield between the two pops.
        interruption.is_raised = True  # or it need not be raised here: a shielded attempt raises it itself
        return self.interruption is not None

    def _cancel(self, coroutine: "asyncio.Task[object]", interruption: Interruption) -> None:
        """Called in the event loop's thread."""
        if not self.has_ended:
            interruption.is_cancelled = True
            coroutine.cancel()


def _raise_in_thread(thread: int, error: JobInterrupted) -> None:
    """Make the interpreter raise this error in the thread, before its next Python instruction.

    The interpreter accepts only a class, and makes the instance itself. So a new class carries the message.
    """
    kind = type(error)
    named = type(kind.__name__, (kind,), {"__doc__": str(error), "__module__": kind.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(named))


_ENTRY = struct.Struct("q")


class RunningJobs:
    """Holds an entry for each thread and each coroutine: the id of its job. Made before the fork that shares it."""

    def __init__(self, entries: int) -> None:
        self._memory = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = entries

    def begin(self, index: int, job_id: int) -> None:
        """Note that the thread or coroutine of this entry runs this job.

        Call only after the outcome of its previous job was handed in: its id is overwritten.
        """
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, job_id)

    def end(self, index: int) -> None:
        """Clear this entry: its thread or coroutine runs no job. If the process dies now, its last job is released."""
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, 0)

    def charge_only(self, job_ids: Collection[int]) -> None:
        """Clear the entries of all jobs except these: if the process dies now, only these jobs are charged."""
        for index, (job_id,) in enumerate(_ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size])):
            if job_id not in job_ids:
                self.end(index)

    def job_ids(self) -> list[int]:
        """The jobs to charge."""
        return [job_id for (job_id,) in _ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size]) if job_id]


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

    `run`, `coroutine` and `uninterrupted` are called in the threads of the attempts, all other methods in the control
    loop's thread. `on_new` wakes the control loop, which then reads `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[LeaseRef, RunningAttempt] = {}
        self._limited: dict[LeaseRef, RunningAttempt] = {}  # the running attempts with a `due_at`
        self.interrupted_at = NEVER
        """When a thread was first interrupted, in monotonic seconds; `NEVER` if no thread was."""

    def run(self, attempt: RunningAttempt, call: Callable[..., Any], *arguments: object) -> Any:
        """Call `call` in this thread. Raises `JobTimeout` in it at its timeout, or `JobCancelled` on `cancel`.

        The exception is raised between any two instructions, until the attempt has ended or `absorb` was called. It is
        raised only once, so that a second `absorb` returns.
        """
        result, error, interruption = None, None, None
        try:
            self.begin(attempt)
            result = call(*arguments)
        except BaseException as raised:
            error = raised
        try:
            if not attempt.end():
                interruption = attempt.absorb()
        except JobInterrupted:
            interruption = attempt.absorb()
        finally:
            self._running.pop(attempt.job.ref, None)
            self._limited.pop(attempt.job.ref, None)
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
        """Within this block an interruption cancels the coroutine. The block raises the exceptions of `run`."""
        attempt.coroutine = task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is called by a coroutine)
        self.begin(attempt)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            interruption = attempt.interruption
            if interruption is None or not interruption.is_cancelled or task.uncancel():
                raise
            # With this traceback, which shows where the attempt was.
            raise interruption.error.with_traceback(cancelled.__traceback__) from None
        else:
            interruption = attempt.interruption
            if interruption is not None and interruption.is_cancelled:  # the coroutine suppressed it, and succeeded
                task.uncancel()
        finally:
            attempt.end()
            self._running.pop(attempt.job.ref, None)
            self._limited.pop(attempt.job.ref, None)

    @contextmanager
    def uninterrupted(self) -> Iterator[Shield]:
        """Within this block no interruption is raised in the attempt of this thread.

        The attempt may still become stuck. An interruption during the block is raised at the end of the block. The
        block has no effect if no attempt runs in this thread, or if the attempt is already in such a block or was
        interrupted. Nor has it any for coroutines: a cancellation does not reach the threads in which their statements
        run.
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
        """Interrupt attempts whose time is over. Returns the attempts that have become stuck, with their stacks."""
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

    def begin(self, attempt: RunningAttempt) -> None:
        ref = attempt.job.ref
        if attempt.timeout is None:
            attempt.expose()
        else:
            attempt.due_at = time.monotonic() + attempt.timeout
            attempt.expose()
            self._limited[ref] = attempt
            self._on_new()
        self._running[ref] = attempt

    def _exposed_here(self) -> RunningAttempt | None:
        thread = threading.get_ident()
        for attempt in list(self._running.values()):
            if attempt.thread == thread and attempt.coroutine is None and EXPOSED in attempt.exposure:
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

"""Track running attempts: interrupt them, and note for the supervisor which jobs a worker has started.

`Interrupter` interrupts an attempt at its timeout, or when its job is cancelled, by raising an exception in its thread.
If the attempt does not end within `STUCK_AFTER` seconds, it counts as stuck. An interruption never reaches a later
attempt in the same thread.

Two threads may change the state of an attempt at the same time: the thread of the attempt, and the control loop that
interrupts it. Both call `dict.pop`, which succeeds in only one of the threads. A lock would not work, because the
exception is raised between any two instructions, and could leave the lock locked forever.

`RunningJobs` notes the jobs that a worker has started, in memory that the supervisor shares. A claim already counts an
attempt. If the worker dies, the attempts of the jobs in this memory stay counted, and the supervisor releases all other
jobs without counting the attempt.

After the death of a worker, this memory has the jobs that were running, and the last job of each idle thread. The last
job may have caused the death, so its attempt stays counted too, unless its outcome was written.
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
from ...values.part import PartOfAttempt
from ...values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from ...values.tracebacks import formatted_stack
from ..notes import AttemptNotes

EXPOSED = "exposed"
"""The state in which the control loop may raise an exception in the attempt's thread, between any two instructions."""

LONGEST_CLOCK_STOP = 60.0
"""For how many seconds the timeout of an attempt may be suspended. Otherwise an attempt that waits for a hanging call
would never end."""

SHIELDED = "shielded"
"""The state in which the control loop does not raise an exception, because a connection is opened, commits or rolls
back. If the attempt is interrupted in this state, it raises the exception itself when the state ends."""


@dataclass(eq=False)
class Interruption:
    """The interruption of an attempt, because it timed out or its job was cancelled."""

    error: JobInterrupted
    """The exception with which the attempt ends."""
    is_raised: bool = False
    """Whether the exception was set in the thread. Not an Event, because an Event has a lock."""
    is_cancelled: bool = False
    """Whether the coroutine was cancelled. Only the event loop's thread uses this."""


class RunningAttempt:
    """A running attempt. It is exposed to interruptions or shielded from them, until it is interrupted or ends.

    All times are by the monotonic clock.
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
        "parts",
        "started",
        "stop",
        "thread",
        "timeout",
        "worker",
    )

    def __init__(self, job: ClaimedJob) -> None:
        self.job = job
        self.timeout: float | None = None
        """Seconds that the attempt may take; `None` means no limit."""
        self.thread = 0
        """The identifier of the attempt's thread, or of its event loop's thread."""
        self.coroutine: asyncio.Task[object] | None = None
        """The asyncio task that runs the attempt of an `async def` task."""
        self.started = 0.0
        self.due_at = NEVER
        """When the attempt times out, if its timeout is never suspended. After the interruption: when it counts as
        stuck."""
        self.interruption: Interruption | None = None
        self.completed: Outcome | None = None
        """The outcome, if the task has committed it itself."""
        self.is_stuck = False
        self.has_ended = False
        self.exposure: dict[str, bool] = {}  # the key is EXPOSED or SHIELDED, or for a moment both; empty at the end
        self._clock: tuple[float, float | None] = (0.0, None)
        """For how many seconds the timeout was suspended, and the time since which it is suspended now. This is one
        tuple, so that another thread always reads two values that belong together."""
        self._unreported = [True]  # the first caller of `take_report` empties the list
        self._kept_back: list[Attempt] = []  # at most one
        self.worker = ""
        self.database = ""
        self.noted: AttemptNotes | None = None
        """The progress and the log lines of the attempt; `None` until the attempt notes something."""
        self.parts: tuple[PartOfAttempt, ...] = ()
        self.stop: threading.Event | None = None
        """Set when the worker stops."""

    def take_report(self) -> bool:
        """Take the right to report the outcome of this attempt. Returns True only to the first caller."""
        try:
            return self._unreported.pop()
        except IndexError:
            return False

    def keep_back(self, attempt: Attempt) -> None:
        """Keep this failed attempt, to report it after the task's code has ended, whatever the code's outcome."""
        self._kept_back.append(attempt)

    def take_kept_back(self) -> Attempt | None:
        """Return the attempt that was kept back, but only to the first caller, which reports it."""
        try:
            return self._kept_back.pop()
        except IndexError:
            return None

    # Called in the thread of the attempt

    def expose(self) -> None:
        """Allow interruptions from now on, in the calling thread."""
        self.thread = threading.get_ident()
        self.exposure[EXPOSED] = True

    def end(self) -> bool:
        """Forbid interruptions from now on. Returns False if the attempt was already interrupted."""
        self.has_ended = True
        if self.exposure.pop(EXPOSED, False):
            return True
        return self.exposure.pop(SHIELDED, False) and self.interruption is None

    def absorb(self) -> Interruption | None:
        """Discard the interruption's exception if it was not raised yet. Waits until the control loop has set it."""
        interruption = self.interruption
        while interruption and not interruption.is_raised:
            time.sleep(0.0001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
        return interruption

    def shield(self) -> None:
        """Forbid interruptions until `unshield`. Raises if the attempt was already interrupted."""
        self.exposure[SHIELDED] = True
        if not self.exposure.pop(EXPOSED, False):  # the attempt was interrupted: raise before the block begins
            self.exposure.pop(SHIELDED, False)
            self.raise_interruption()

    def unshield(self) -> bool:
        """Allow interruptions again. Returns False if the attempt was interrupted meanwhile, or was not shielded."""
        if SHIELDED not in self.exposure:
            return False
        self.exposure[EXPOSED] = True  # before the pop: the attempt always has one of the two states
        if not self.exposure.pop(SHIELDED, False):
            self.exposure.pop(EXPOSED, False)
            return False
        return True

    def raise_interruption(self) -> NoReturn:
        """Raise the exception of the interruption here, so that it is not raised at a later instruction."""
        interruption = self.absorb()
        if interruption is None:
            raise JobTimeout("it did not end in time, and was given up")
        raise interruption.error

    def require_in_time(self) -> None:
        """Raise again if this thread's attempt was interrupted, because the task may have caught the exception."""
        if self.interruption and self.thread == threading.get_ident():
            self.raise_interruption()

    def note_completed(self, outcome: Outcome) -> None:
        """Note that the task has committed this outcome itself. Called in the thread of the transaction.

        The attempt must be shielded until then, because an exception would keep Django from calling the on-commit
        hooks.
        """
        self.completed = outcome
        self.unshield()

    # Called under the lock of `QueryThread`

    def stop_clock(self) -> None:
        """Suspend the timeout."""
        suspended, since = self._clock
        self._clock = (suspended, time.monotonic() if since is None else since)

    def start_clock(self) -> None:
        """End the suspension of the timeout."""
        suspended, since = self._clock
        if since is not None:
            self._clock = (suspended + time.monotonic() - since, None)

    # Called in any thread

    def deadline(self, now: float) -> float:
        """Return `due_at`, plus the time for which the timeout was suspended."""
        if self.interruption is not None:
            return self.due_at
        suspended, since = self._clock
        return self.due_at + min(suspended if since is None else suspended + now - since, LONGEST_CLOCK_STOP)

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
    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the attempt was interrupted because the job was cancelled or taken from the worker."""
        return isinstance(self.error, JobCancelled)

    @property
    def has_harmed_thread(self) -> bool:
        """Whether an exception was raised in the attempt's thread, so that the thread may be in a broken state."""
        return self.interruption is not None and self.coroutine is None

    # Called in the thread of the control loop

    def interrupt(self, error: JobInterrupted) -> bool:
        """Interrupt the attempt with this error. Returns False if the attempt has already ended."""
        interruption = self.interruption = Interruption(error)  # before the pop, so that the attempt's thread finds it
        while True:
            if self.exposure.pop(EXPOSED, False):
                if self.coroutine is not None:
                    interruption.is_raised = True  # no exception is set: the event loop cancels the coroutine
                    self.coroutine.get_loop().call_soon_threadsafe(self._cancel, self.coroutine, interruption)
                    return True
                _raise_in_thread(self.thread, error)
                break
            if self.exposure.pop(SHIELDED, False):
                break
            if self.has_ended:
                self.interruption = None
                break
            # Between the two pops, the attempt has changed from shielded to exposed. Try again.
        interruption.is_raised = True  # also if the attempt was shielded, because it then raises the exception itself
        return self.interruption is not None

    def _cancel(self, coroutine: "asyncio.Task[object]", interruption: Interruption) -> None:
        """Called in the event loop's thread."""
        if not self.has_ended:
            interruption.is_cancelled = True
            coroutine.cancel()


def _raise_in_thread(thread: int, error: JobInterrupted) -> None:
    """Make the interpreter raise this error in the thread, before its next Python instruction.

    The interpreter accepts only a class, and makes the instance itself. So the message is put into a new class.
    """
    error_class = type(error)
    class_with_message = type(
        error_class.__name__, (error_class,), {"__doc__": str(error), "__module__": error_class.__module__}
    )
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(class_with_message))


_ENTRY = struct.Struct("q")


class RunningJobs:
    """Memory that a worker shares with its supervisor: for each thread or coroutine, the id of its job.

    The object is made before the worker process is forked.
    """

    def __init__(self, entries: int) -> None:
        self._memory = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = entries

    def begin(self, index: int, job_id: int) -> None:
        """Note that the thread or coroutine with this index is running this job.

        Call this only after the outcome of its previous job was reported, because the id of that job is overwritten.
        """
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, job_id)

    def end(self, index: int) -> None:
        """Clear this entry, so that its last job is released without counting the attempt if the process dies now."""
        _ENTRY.pack_into(self._memory, index * _ENTRY.size, 0)

    def charge_only(self, job_ids: Collection[int]) -> None:
        """Clear the entries of all other jobs. If the process dies now, only the attempts of these jobs are counted."""
        for index, (job_id,) in enumerate(_ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size])):
            if job_id not in job_ids:
                self.end(index)

    def job_ids(self) -> list[int]:
        """The jobs whose attempts are counted if the process dies now."""
        return [job_id for (job_id,) in _ENTRY.iter_unpack(self._memory[: self._entries * _ENTRY.size]) if job_id]


STUCK_AFTER = 5.0
"""An attempt that still runs this many seconds after its interruption counts as stuck."""

STACK_DEPTH = 8
"""How many calls of a thread are shown in one line."""


@dataclass(eq=False, slots=True)
class Shield:
    """Passed to the `with` block of `uninterrupted`, in which no interruption is raised."""

    ends_with_block: bool
    """If the block sets this to False, interruptions stay forbidden after the block, until `unshield` is called."""


class Interrupter:
    """Interrupts the running attempts of one worker.

    `run`, `coroutine` and `uninterrupted` are called in the threads of the attempts, all other methods in the control
    loop's thread. `on_new` wakes the control loop, which then reads `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[LeaseRef, RunningAttempt] = {}
        self._limited: dict[LeaseRef, RunningAttempt] = {}  # the running attempts that have a timeout
        self.interrupted_at = NEVER
        """When a thread was first interrupted, by the monotonic clock; `NEVER` if no thread was interrupted."""

    def run(self, attempt: RunningAttempt, call: Callable[..., Any], *arguments: object) -> Any:
        """Call `call` in this thread. It is interrupted by `JobTimeout` at the timeout, or by `JobCancelled`.

        The exception may be raised between any two instructions, until the attempt has ended or `absorb` has returned.
        It is raised only once, so a second call of `absorb` always returns.
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
                raise interruption.error from error  # interrupting a statement has caused the database error
            raise error
        finally:
            error = interruption = None  # break the reference cycle, as the tracebacks of both refer to this frame

    @contextmanager
    def coroutine(self, attempt: RunningAttempt) -> Iterator[None]:
        """Within this block, an interruption cancels the coroutine. The block raises the same exceptions as `run`."""
        attempt.coroutine = task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is called by a coroutine)
        self.begin(attempt)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            interruption = attempt.interruption
            if interruption is None or not interruption.is_cancelled or task.uncancel():
                raise
            # The traceback of the cancellation shows which line of the task was interrupted.
            raise interruption.error.with_traceback(cancelled.__traceback__) from None
        else:
            interruption = attempt.interruption
            if interruption is not None and interruption.is_cancelled:  # the task has suppressed the cancellation
                task.uncancel()
        finally:
            attempt.end()
            self._running.pop(attempt.job.ref, None)
            self._limited.pop(attempt.job.ref, None)

    @contextmanager
    def uninterrupted(self) -> Iterator[Shield]:
        """Within this block, no interruption is raised in the attempt of this thread.

        An interruption during the block is raised at the end of the block. If the block takes too long, the attempt may
        still become stuck. The block has no effect if no attempt runs in this thread, if the attempt is already in such
        a block, or if it was interrupted. For coroutines the block is not needed, because a cancellation does not reach
        the threads in which their statements run.
        """
        attempt = self._exposed_in_this_thread()
        shield = Shield(ends_with_block=attempt is not None)
        if attempt is not None:
            attempt.shield()
        try:
            yield shield
        finally:
            if attempt is not None and shield.ends_with_block and not attempt.unshield():
                attempt.raise_interruption()

    @property
    def attempts(self) -> Collection[RunningAttempt]:
        """All running attempts, including stuck ones. Copy it before you read it, as other threads change it."""
        return self._running.values()

    def running(self) -> set[LeaseRef]:
        return {attempt.job.ref for attempt in list(self._running.values()) if not attempt.is_stuck}

    def stuck(self) -> list[RunningAttempt]:
        return [attempt for attempt in list(self._running.values()) if attempt.is_stuck]

    @property
    def next_deadline(self) -> float:
        """When to call `enforce` next, by the monotonic clock."""
        now = time.monotonic()
        return min((attempt.deadline(now) for attempt in list(self._limited.values())), default=NEVER)

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """Interrupt the running attempt of this job, unless it was interrupted or has committed its outcome."""
        attempt = self._running.get(job.ref)
        if attempt is not None and attempt.interruption is None and attempt.completed is None:
            self._interrupt(attempt, JobCancelled(reason))

    def enforce(self) -> list[tuple[RunningAttempt, str]]:
        """Interrupt attempts that have timed out. Returns attempts that are stuck, each with its stack."""
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

    def _exposed_in_this_thread(self) -> RunningAttempt | None:
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
    """For each other thread, or only for `only`, return a line with its name and the innermost calls of its stack."""
    frames = sys._current_frames()
    lines = []
    for thread in [only] if only else threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            calls = [f"{call.name} ({call.filename}:{call.lineno})" for call in traceback.extract_stack(frame)]
            lines.append(f"{thread.name} in {', from '.join(reversed(calls[-STACK_DEPTH:]))}")
    return lines

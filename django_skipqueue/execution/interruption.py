"""The attempts that run, how long each may, and how one is interrupted: by its timeout, or by a cancel.

Invariant: an interruption reaches the attempt that it is meant for, or nobody: never the next one in the same thread.
An attempt takes itself out of `_running` when it ends, or for the time of a shield: where a connection is opened,
commits or rolls back. Whoever takes it out first, it or the control loop, decides whether it is interrupted.
"""

import asyncio
import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from django.db import Error as DatabaseError

from ..exceptions import JobCancelled, JobInterrupted, JobTimeout
from ..values.records import ClaimedJob, LeaseRef

STUCK_AFTER = 5.0
"""Seconds in which an interrupted attempt must end; after that it is stuck."""

STACK_DEPTH = 8
"""How many of a thread's calls are told where one line is for all of them."""

Location = int | asyncio.Task[Any]
"""Where an attempt runs: the identifier of its thread, or its task in the event loop."""


class Deadline(NamedTuple):
    """The time that one attempt has."""

    job: ClaimedJob
    seconds: float
    at: float
    """In monotonic seconds."""


@dataclass(eq=False)
class Interruption:
    """What was done to end one attempt."""

    job: ClaimedJob
    error: JobInterrupted
    """What the attempt ends with."""
    thread: int
    """Its identifier: where to look for the stack of an attempt that is stuck."""
    stuck_at: float = field(init=False)
    """In monotonic seconds."""
    is_raised: bool = False
    """Whether the exception is set. Not an Event: it has a lock, and an exception that comes between any two
    instructions may leave that locked, so that the control loop would wait for it for ever."""
    is_cancelled: bool = False
    """Whether a coroutine was cancelled by us. Used in its event loop's thread alone."""
    has_ended: bool = False
    """Whether the attempt is through."""

    def __post_init__(self) -> None:
        self.stuck_at = time.monotonic() + STUCK_AFTER


@dataclass(eq=False, slots=True)
class Shield:
    """A block in which nothing is raised."""

    is_up: bool
    """Whoever sets this to False in the block keeps the shield beyond its end, until `unshield`."""


class Interrupter:
    """The attempts that one worker runs.

    `run`, `coroutine`, `uninterrupted`, `unshield`, `require_in_time` and `take_taint` are called in the threads of the
    attempts, everything else by the control loop. `on_new` tells it to look at `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[LeaseRef, Location] = {}
        self._shielded: dict[LeaseRef, int] = {}  # where nothing may be raised; by thread
        self._deadlines: dict[LeaseRef, Deadline] = {}
        self._interrupted: dict[LeaseRef, Interruption] = {}
        self.interrupted_at = float("inf")
        """Since when something was raised in an attempt, in monotonic seconds."""
        self._tainted: set[int] = set()  # threads in whose attempt something was raised
        self._loop_thread = 0

    def run(self, job: ClaimedJob, seconds: float | None, call: Callable[[], Any]) -> Any:
        """Call in this thread; `JobTimeout` is raised in it after so many seconds, `JobCancelled` by `cancel`.

        The exception may come between any two instructions until the attempt is out of `_running`, or `_absorb` is
        through. It comes once, so that a second `_absorb` is sure to be. A call without a limit costs two steps in a
        dict, 0.1 µs.
        """
        ref = job.ref
        result, error, interruption = None, None, None
        try:
            self._running[ref] = threading.get_ident()
            if seconds is not None:
                self._set_deadline(ref, job, seconds)
            result = call()
        except BaseException as raised:
            error = raised
        try:
            if self._running.pop(ref, None) is None and not self._ends_shielded(ref):
                interruption = self._absorb(ref)
        except JobInterrupted:
            interruption = self._absorb(ref)
        if seconds is not None:
            self._deadlines.pop(ref, None)
        if error is None:
            return result
        try:
            if interruption is not None and isinstance(error, DatabaseError):
                raise interruption.error from error  # which it has caused, in the middle of a statement
            raise error
        finally:
            error = interruption = None  # their tracebacks hold this frame, which would hold them

    @contextmanager
    def coroutine(self, job: ClaimedJob, seconds: float | None) -> Iterator[None]:
        """Within this block the coroutine is cancelled when it is to end, and what `run` raises comes out of it."""
        ref = job.ref
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (for the type checker: this is called by a coroutine)
        self._loop_thread = threading.get_ident()
        self._running[ref] = task
        if seconds is not None:
            self._set_deadline(ref, job, seconds)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            interruption = self._interrupted.get(ref)
            if interruption is None or not interruption.is_cancelled or task.uncancel():
                raise
            raise interruption.error.with_traceback(cancelled.__traceback__) from None  # which says where it was
        else:
            interruption = self._interrupted.get(ref)
            if interruption is not None and interruption.is_cancelled:  # it went on after that, and ended well
                task.uncancel()
        finally:
            self._deadlines.pop(ref, None)
            if self._running.pop(ref, None) is None and (interruption := self._interrupted.get(ref)):
                interruption.has_ended = True

    @contextmanager
    def uninterrupted(self) -> Iterator[Shield]:
        """Within this block nothing is raised in this thread's attempt; it may be stuck still.

        An attempt whose time is over meanwhile is told so at the end of the block. Without effect where no attempt
        runs, where one is in such a block already or was interrupted before, and for coroutines: a cancellation does
        not reach the threads that they have statements run in.
        """
        thread = threading.get_ident()
        ref = next((ref for ref, place in list(self._running.items()) if place == thread), None)
        shield = Shield(is_up=ref is not None)
        if ref is not None:
            self._shielded[ref] = thread
            if self._running.pop(ref, None) is None:  # the exception is on its way, and must not come in the block
                self._shielded.pop(ref, None)
                self._raise_interruption(ref)
        try:
            yield shield
        finally:
            if ref is not None and shield.is_up and not self.unshield(ref):
                self._raise_interruption(ref)

    def unshield(self, ref: LeaseRef) -> bool:
        """Have the attempt interrupted again when it is to end; False: its time was over meanwhile."""
        if ref not in self._shielded:
            return False
        self._running[ref] = threading.get_ident()  # before it leaves the other: it is in one of them at any time
        if self._shielded.pop(ref, None) is None:
            self._running.pop(ref, None)
            return False
        return True

    def require_in_time(self, ref: LeaseRef) -> None:
        """Raise what this thread's attempt was interrupted with, even if its task has got over that."""
        interruption = self._interrupted.get(ref)
        if interruption and interruption.thread == threading.get_ident():
            self._raise_interruption(ref)

    def take_taint(self) -> bool:
        """Whether something was raised in an attempt of this thread since the last call. Costs 0.02 µs where not."""
        if not self._tainted or (thread := threading.get_ident()) not in self._tainted:
            return False
        self._tainted.discard(thread)
        return True

    def is_cancelled(self, ref: LeaseRef) -> bool:
        """Whether this attempt was told to end because its job was taken from the worker. For any thread."""
        interruption = self._interrupted.get(ref)
        return interruption is not None and isinstance(interruption.error, JobCancelled)

    def running(self) -> set[LeaseRef]:
        """The attempts that run, but for those that are stuck."""
        return {*list(self._running), *list(self._shielded), *list(self._interrupted)}

    @property
    def next_deadline(self) -> float:
        """When to call `enforce` next, in monotonic seconds."""
        deadlines = [deadline.at for deadline in list(self._deadlines.values())]
        deadlines += [interruption.stuck_at for interruption in self._interrupted.values()]
        return min(deadlines, default=float("inf"))

    def cancel(self, job: ClaimedJob, reason: str) -> None:
        """End this attempt, if it runs and nobody has told it to end yet."""
        self._interrupt(job, JobCancelled(reason))

    def enforce(self) -> list[tuple[Interruption, str]]:
        """Interrupt the attempts whose time is over; those that did not end in the time of grace, with their stacks."""
        now = time.monotonic()
        for deadline in list(self._deadlines.values()):
            if deadline.at <= now:
                self._deadlines.pop(deadline.job.ref, None)
                self._interrupt(deadline.job, JobTimeout(f"timed out after {deadline.seconds:g} s"))
        stuck = []
        for ref, interruption in list(self._interrupted.items()):
            if interruption.has_ended or interruption.stuck_at <= now:
                del self._interrupted[ref]
            if not interruption.has_ended and interruption.stuck_at <= now:
                stuck.append((interruption, _stack_of(interruption.thread)))
        return stuck

    def _raise_interruption(self, ref: LeaseRef) -> NoReturn:
        """Raise here what the control loop has raised, or would have, between any two instructions."""
        interruption = self._interrupted.get(ref)
        if interruption is None:
            raise JobTimeout("it did not end in time, and was given up")
        while not interruption.is_raised:
            time.sleep(0.0001)
        _forget_exception()
        raise interruption.error

    def _taint(self, thread: int) -> None:
        self._tainted.add(thread)
        self.interrupted_at = min(self.interrupted_at, time.monotonic())

    def _set_deadline(self, ref: LeaseRef, job: ClaimedJob, seconds: float) -> None:
        self._deadlines[ref] = Deadline(job, seconds, time.monotonic() + seconds)
        self._on_new()

    def _ends_shielded(self, ref: LeaseRef) -> bool:
        """Whether the attempt was in a shield to its end, and not interrupted: in there, or on the way into it."""
        return self._shielded.pop(ref, None) is not None and ref not in self._interrupted

    def _absorb(self, ref: LeaseRef) -> Interruption | None:
        """The control loop was first: wait for its exception, if that has not come yet, and drop it."""
        interruption = self._interrupted.get(ref)  # gone if the attempt was found to be stuck
        while interruption and not interruption.is_raised:
            time.sleep(0.0001)
        _forget_exception()
        if interruption:
            interruption.has_ended = True
        return interruption

    def _interrupt(self, job: ClaimedJob, error: JobInterrupted) -> None:
        """The interruption stands in `_interrupted` before the attempt can see that it has lost."""
        ref = job.ref
        place = self._running.get(ref) or self._shielded.get(ref)
        if place is None or ref in self._interrupted:
            return
        thread = place if isinstance(place, int) else self._loop_thread
        interruption = self._interrupted[ref] = Interruption(job, error, thread)
        if self._running.pop(ref, None) is not None:
            if isinstance(place, int):
                self._taint(thread)
                _raise_in_thread(thread, error)
                interruption.is_raised = True
            else:
                place.get_loop().call_soon_threadsafe(_cancel, place, interruption)
        elif self._shielded.pop(ref, None) is not None:
            self._taint(thread)
            interruption.is_raised = True  # it never is: the attempt sees that it has lost its shield
        else:  # it ended between the two looks, and may wait in `_absorb`
            interruption.is_raised = True
            del self._interrupted[ref]


def _cancel(task: asyncio.Task[Any], interruption: Interruption) -> None:
    if not interruption.has_ended:
        interruption.is_cancelled = True
        task.cancel()


def _raise_in_thread(thread: int, error: JobInterrupted) -> None:
    """Have the interpreter raise this error in the thread, before its next Python instruction.

    It takes a class and makes the instance itself, so the message goes with a class of its own.
    """
    kind = type(error)
    told = type(kind.__name__, (kind,), {"__doc__": str(error), "__module__": kind.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(told))


def _forget_exception() -> None:
    """Drop an exception that was set for this thread and not raised yet: the interpreter may be late with it."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)


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

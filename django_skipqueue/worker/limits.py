"""How long attempts may run, and how they are interrupted when their time is over.

Invariant: an interruption reaches the attempt that it is meant for, or nobody: never the next one in the same thread.
An attempt takes itself out of `_running` when it ends; whoever takes it out first, it or the control loop, decides
whether it is interrupted.
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
from typing import Any

from ..exceptions import JobTimeout
from ..records import ClaimedJob

GRACE = 5.0
"""Seconds in which an interrupted attempt must end; after that it is stuck."""


@dataclass(eq=False)
class Limit:
    """The time of one attempt."""

    job: ClaimedJob
    seconds: float
    thread: int
    """Its identifier: where to look for the stack of an attempt that is stuck."""
    interrupt: Callable[["Limit"], object]
    deadline: float = field(init=False)
    """In monotonic seconds."""
    interrupted: bool = False
    """Set once `interrupt` has been called. Not an Event: it has a lock, and an exception that comes between any two
    instructions may leave that locked, so that the control loop would wait for it for ever."""
    cancelled: bool = False
    """Whether a coroutine was cancelled by us. Used in its event loop's thread alone."""
    ended: bool = False
    """Whether the attempt is through."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds

    @property
    def error(self) -> JobTimeout:
        """What the attempt fails with."""
        return JobTimeout(f"timed out after {self.seconds:g} s")


class Limits:
    """The attempts of one worker that have a time limit.

    `run` and `coroutine` are called in the threads of the attempts, everything else by the control loop. `on_new` tells
    the loop to look at `next_deadline` again.
    """

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        self._on_new = on_new
        self._running: dict[Limit, None] = {}
        self._interrupted: list[Limit] = []

    def run(self, job: ClaimedJob, seconds: float, call: Callable[[], Any]) -> Any:
        """Call in this thread; `JobTimeout` is raised in it when the time is over.

        The exception may come between any two instructions until `_end` is through. It comes once, so that a second
        `_end` is sure to be. The limit is made before it is registered, so that a registered one has a name here.
        """
        limit = Limit(job, seconds, threading.get_ident(), _raise_in_thread)
        result, error = None, None
        try:
            self._running[limit] = None
            self._on_new()
            result = call()
        except BaseException as raised:
            error = raised
        try:
            self._end(limit)
        except JobTimeout:
            self._end(limit)
        if error is not None:
            raise error
        return result

    def _end(self, limit: Limit) -> None:
        limit.ended = True
        if self._running.pop(limit, limit) is limit:  # the control loop was first: its exception came, or comes
            while not limit.interrupted:
                time.sleep(0.0001)
            _forget_exception()

    @contextmanager
    def coroutine(self, job: ClaimedJob, seconds: float | None) -> Iterator[None]:
        """Within this block, the coroutine is cancelled when the time is over, and `JobTimeout` comes out of it."""
        if seconds is None:
            yield
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(limit: Limit) -> None:
            if not limit.ended and task is not None:
                limit.cancelled = True
                task.cancel()

        limit = Limit(job, seconds, threading.get_ident(), lambda limit: loop.call_soon_threadsafe(cancel, limit))
        self._running[limit] = None
        self._on_new()
        try:
            yield
        except asyncio.CancelledError:
            if not limit.cancelled or task is None or task.uncancel():
                raise
            raise limit.error from None
        else:
            if limit.cancelled and task is not None:  # the coroutine went on after its cancellation, and ended well
                task.uncancel()
        finally:
            limit.ended = True
            self._running.pop(limit, None)

    @property
    def next_deadline(self) -> float:
        """When to call `enforce` next, in monotonic seconds."""
        deadlines = [limit.deadline for limit in list(self._running)]
        deadlines += [limit.deadline + GRACE for limit in self._interrupted]
        return min(deadlines, default=float("inf"))

    def enforce(self) -> list[tuple[Limit, str]]:
        """Interrupt the attempts whose time is over; those that did not end in the time of grace, with their stacks."""
        now = time.monotonic()
        for limit in [limit for limit in list(self._running) if limit.deadline <= now]:
            if self._running.pop(limit, limit) is None:
                limit.interrupt(limit)
                limit.interrupted = True
                self._interrupted.append(limit)
        stuck = [limit for limit in self._interrupted if not limit.ended and limit.deadline + GRACE <= now]
        self._interrupted = [limit for limit in self._interrupted if not limit.ended and limit not in stuck]
        return [(limit, _stack_of(limit.thread)) for limit in stuck]


def _raise_in_thread(limit: Limit) -> None:
    """Have the interpreter raise `JobTimeout` in the attempt's thread, before its next Python instruction."""
    timeout = type("JobTimeout", (JobTimeout,), {"__doc__": str(limit.error), "__module__": JobTimeout.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(limit.thread), ctypes.py_object(timeout))


def _forget_exception() -> None:
    """Drop an exception that was set for this thread and not raised yet: the interpreter may be late with it."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame else ""

"""One attempt while it runs: where it runs, for how long it may, and who ends it.

Invariant: an interruption reaches the attempt that it is meant for, or nobody: never the next one in the same thread.

Two may change the state at the same time: the attempt's own thread, and the control loop that interrupts it. Both do so
with one `dict.pop`, which succeeds in one of them. No lock: an exception that is raised between any two instructions
may leave a lock taken.
"""

import asyncio
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import NoReturn

from ..exceptions import JobCancelled, JobInterrupted, JobTimeout
from ..values.outcomes import Outcome
from ..values.records import ClaimedJob

EXPOSED = "exposed"
"""The state in which the control loop may raise an exception in the attempt, between any two instructions."""

SHIELDED = "shielded"
"""The state in which nothing is raised: a connection is opened, commits or rolls back. Interrupted nevertheless, the
attempt raises the exception itself when it leaves the shield."""

NEVER = float("inf")


@dataclass(eq=False)
class Interruption:
    """The end that the control loop has put to an attempt."""

    error: JobInterrupted
    """The exception with which the attempt ends."""
    is_raised: bool = False
    """Whether the exception is set. Not an Event: that has a lock."""
    is_cancelled: bool = False
    """Whether the coroutine was cancelled. Used in its event loop's thread alone."""


class RunningAttempt:
    """An attempt is exposed or shielded until it is interrupted or ends; an interrupted one that does not end is stuck.

    Times are monotonic seconds.
    """

    __slots__ = (
        "_open",
        "_unreported",
        "completed",
        "coroutine",
        "due_at",
        "has_ended",
        "interruption",
        "is_stuck",
        "job",
        "started",
        "thread",
        "timeout",
    )

    def __init__(self, job: ClaimedJob, timeout: float | None = None) -> None:
        self.job = job
        self.timeout = timeout
        """Seconds that it may take; `None`: as long as it wants."""
        self.thread = 0
        """The identifier of the thread in which it runs, or in which its event loop does."""
        self.coroutine: asyncio.Task[object] | None = None
        """The task of the event loop, for the attempt of an `async def` task."""
        self.started = 0.0
        self.due_at = NEVER
        """When its time is over; once it is interrupted, when it counts as stuck."""
        self.interruption: Interruption | None = None
        self.completed: Outcome | None = None
        """The outcome that the task itself has committed."""
        self.is_stuck = False
        self.has_ended = False
        self._open: dict[str, bool] = {}  # one key, EXPOSED or SHIELDED; both for a moment; none once it is decided
        self._unreported = [True]

    def take_report(self) -> bool:
        """Whether the caller is the first who has an outcome of this attempt to report; True once."""
        try:
            return self._unreported.pop()
        except IndexError:
            return False

    # In the thread of the attempt

    def begin(self) -> None:
        """Note the time."""
        self.started = time.monotonic()

    def expose(self) -> None:
        """Allow interruptions from here on, in the thread that calls."""
        self.thread = threading.get_ident()
        self._open[EXPOSED] = True

    def end(self) -> bool:
        """Allow no interruption from here on; False: there was one before."""
        self.has_ended = True
        if self._open.pop(EXPOSED, False):
            return True
        return self._open.pop(SHIELDED, False) and self.interruption is None

    def absorb(self) -> Interruption | None:
        """Wait until the control loop has set its exception, and drop it: the interpreter may be late with it."""
        interruption = self.interruption
        while interruption and not interruption.is_raised:
            time.sleep(0.0001)
        _forget_exception()
        return interruption

    def shield(self) -> None:
        """Allow no interruption until `unshield`; raises the exception of one that came before."""
        self._open[SHIELDED] = True
        if not self._open.pop(EXPOSED, False):  # the exception is on its way, and must not come in the block
            self._open.pop(SHIELDED, False)
            self.raise_interruption()

    def unshield(self) -> bool:
        """Allow interruptions again; False: there was one meanwhile, or the attempt was not shielded."""
        if SHIELDED not in self._open:
            return False
        self._open[EXPOSED] = True  # before it leaves the other: it is in one of the two at any time
        if not self._open.pop(SHIELDED, False):
            self._open.pop(EXPOSED, False)
            return False
        return True

    def raise_interruption(self) -> NoReturn:
        """Raise here what the control loop has raised, or would have, between any two instructions."""
        interruption = self.absorb()
        if interruption is None:
            raise JobTimeout("it did not end in time, and was given up")
        raise interruption.error

    def require_in_time(self) -> None:
        """Raise the exception of an interruption, even if the task has caught it before. In other threads: nothing."""
        if self.interruption and self.thread == threading.get_ident():
            self.raise_interruption()

    def note_completed(self, outcome: Outcome) -> None:
        """Note that the task has committed this outcome itself. Called in the thread of its transaction.

        Between the commit and this nothing is interrupted: Django would call no hooks.
        """
        self.completed = outcome
        self.unshield()

    # For any thread

    @property
    def error(self) -> JobInterrupted | None:
        """The exception of its interruption."""
        return None if self.interruption is None else self.interruption.error

    @property
    def is_exposed(self) -> bool:
        """Whether the control loop may interrupt it this moment."""
        return EXPOSED in self._open

    @property
    def is_cancelled(self) -> bool:
        """Whether it was interrupted because its job was taken from the worker."""
        return isinstance(self.error, JobCancelled)

    @property
    def has_harmed_thread(self) -> bool:
        """Whether something was raised in its thread between any two instructions."""
        return self.interruption is not None and self.coroutine is None

    # In the thread of the control loop

    def interrupt(self, error: JobInterrupted) -> bool:
        """End it with this error; False: it has ended by itself."""
        interruption = self.interruption = Interruption(error)  # before the attempt can see that it has lost
        if self._open.pop(EXPOSED, False):
            if self.coroutine is not None:
                self.coroutine.get_loop().call_soon_threadsafe(self._cancel, self.coroutine, interruption)
                return True
            _raise_in_thread(self.thread, error)
        elif not self._open.pop(SHIELDED, False):
            self.interruption = None
        interruption.is_raised = True  # in a shield it never is: the attempt raises it as it leaves
        return self.interruption is not None

    def _cancel(self, coroutine: "asyncio.Task[object]", interruption: Interruption) -> None:
        """Called in the event loop's thread."""
        if not self.has_ended:
            interruption.is_cancelled = True
            coroutine.cancel()


def _raise_in_thread(thread: int, error: JobInterrupted) -> None:
    """Have the interpreter raise this error in the thread, before its next Python instruction.

    It takes a class and makes the instance itself, so the message goes with a class of its own.
    """
    kind = type(error)
    named = type(kind.__name__, (kind,), {"__doc__": str(error), "__module__": kind.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(named))


def _forget_exception() -> None:
    """Drop an exception that was set for this thread and not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)

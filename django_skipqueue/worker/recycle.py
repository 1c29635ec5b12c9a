"""Decides when a worker process is to be replaced: the process reached a limit, or an attempt was interrupted.

One limit is the memory of the process, which is measured here.
"""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from ..events.log_format import counted
from ..values.records import NEVER, LeaseRef
from .attempts.interruption import Interrupter
from .loop import Service
from .options import WorkerOptions

MEMORY_CHECK = 1.0
"""Seconds between two checks of the memory in use."""

INTERRUPTED_TIME = 10.0
"""Seconds between an interruption and the replacement of the process, at least. So several interruptions in a row share
one replacement."""

LONG_WAIT = 60.0
"""Seconds after an interruption at which a log line names the attempts that the process still waits for: they may hang
on a lock that the interrupted attempt has left taken."""

QUIET_CHECK = 1.0
"""Seconds between two checks of the running attempts."""


class Recycling(Service):
    """The service that checks `--max-jobs-per-worker`, `--max-memory-mb` and interruptions.

    An interruption is raised between any two instructions: it may leave a lock taken, or a cache half filled.
    """

    name = "recycling"
    loop_handles_errors = False

    def __init__(
        self,
        options: WorkerOptions,
        interrupter: Interrupter,
        *,
        jobs_done: Callable[[], int],
        recycle: Callable[[str], object],
        waits: Callable[[set[LeaseRef]], object] = lambda _: None,
    ) -> None:
        """`jobs_done` returns the number of settled attempts. `recycle` is called once, with the reason.

        `waits` is called with the attempts that keep an interrupted process from being replaced for `LONG_WAIT`.
        """
        self._waits = waits
        self._told_of = 0.0  # the interruption for which it was called
        self._jobs_done = jobs_done
        self._recycle = recycle
        self._is_decided = False
        self._interrupter = interrupter
        self._ran_before: set[LeaseRef] | None = None
        self._next_quiet_check = 0.0
        self._ends_anyway = options.max_jobs is not None  # a new process would count from zero
        self._max_jobs = options.max_jobs_per_worker
        self._max_memory_mb = options.max_memory_mb
        self._next_memory_check = 0.0

    @property
    def due_at(self) -> float:
        if self._is_decided:
            return NEVER
        if self._max_jobs is not None and self._jobs_done() >= self._max_jobs:
            return 0.0
        memory_check = NEVER if self._max_memory_mb is None else self._next_memory_check
        return min(memory_check, self._next_look_for_quiet())

    def run(self, now: float) -> None:
        if reason := self._reason(now):
            self._is_decided = True
            self._recycle(reason)

    def _reason(self, now: float) -> str | None:
        jobs_done = self._jobs_done()
        if self._max_jobs is not None and jobs_done >= self._max_jobs:
            return f"it has run {counted(jobs_done, 'attempt')}"
        if self._max_memory_mb is not None and self._next_memory_check <= now:
            self._next_memory_check = now + MEMORY_CHECK
            if (size := resident_mb()) > self._max_memory_mb:
                return f"it has grown to {size:,.0f} MiB"
        if self._next_look_for_quiet() <= now and self._is_quiet(now):
            return "an attempt in it was interrupted"
        return None

    def _next_look_for_quiet(self) -> float:
        if self._ends_anyway:
            return NEVER
        return max(self._interrupter.interrupted_at + INTERRUPTED_TIME, self._next_quiet_check)

    def _is_quiet(self, now: float) -> bool:
        """Whether no attempt runs, or only attempts that began after the previous check: then jobs are short."""
        self._next_quiet_check = now + QUIET_CHECK
        running = self._interrupter.running()
        ran_before, self._ran_before = self._ran_before, running
        if not running or (ran_before is not None and not running & ran_before):
            return True
        interrupted_at = self._interrupter.interrupted_at
        if ran_before and interrupted_at + LONG_WAIT <= now and self._told_of != interrupted_at:
            self._told_of = interrupted_at
            self._waits(running & ran_before)
        return False


PROC = Path("/proc")

MEBIBYTE = 1024 * 1024


def resident_mb() -> float:
    """The resident size of this process in MiB; on a system without /proc, its maximum so far."""
    size = resident_bytes(os.getpid())
    if size is None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest / MEBIBYTE if sys.platform == "darwin" else largest / 1024  # bytes there, KiB elsewhere
    return size / MEBIBYTE


def resident_mb_of(pid: int) -> int | None:
    """The resident size of a process in whole MiB; `None` on a system without /proc, or if the process is gone."""
    size = resident_bytes(pid)
    return None if size is None else round(size / MEBIBYTE)


def resident_bytes(pid: int) -> int | None:
    """The resident size of a process; `None` on a system without /proc, or if the process is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")

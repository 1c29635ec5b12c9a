"""When a worker process has done its share, and is to be replaced.

Pure but for the look at the process's memory. Times are monotonic seconds.
"""

from ..events.log_format import counted
from ..execution.interruption import Interrupter
from ..runtime.worker_options import WorkerOptions
from ..values.records import LeaseRef
from .memory import resident_mb

MEMORY_CHECK = 1.0
"""Seconds between two looks at the memory in use."""

INTERRUPTED_TIME = 10.0
"""Seconds for which a process goes on after an interruption, however little it has to do: interruptions that follow
each other share one replacement."""

QUIET_CHECK = 1.0
"""Seconds between two looks at what runs."""


class Recycling:
    """The limits of `--max-jobs-per-worker` and `--max-memory-mb`, and what interruptions may have left behind.

    An exception that comes between any two instructions may leave a lock taken, or a cache half filled.
    """

    def __init__(self, options: WorkerOptions, interrupter: Interrupter) -> None:
        self._interrupter = interrupter
        self._ran_before: set[LeaseRef] | None = None
        self._next_quiet_check = 0.0
        self._ends_anyway = options.max_jobs is not None  # another process would begin to count anew
        self._max_jobs = options.max_jobs_per_worker
        self._max_memory_mb = options.max_memory_mb
        self._next_memory_check = 0.0

    def reason(self, jobs_done: int, now: float) -> str | None:
        """Why the process is to be replaced now; `None`: it is not."""
        if self._max_jobs is not None and jobs_done >= self._max_jobs:
            return f"it has run {counted(jobs_done, 'attempt')}"
        if self._max_memory_mb is not None and self._next_memory_check <= now:
            self._next_memory_check = now + MEMORY_CHECK
            if (size := resident_mb()) > self._max_memory_mb:
                return f"it has grown to {size:,.0f} MiB"
        if self._ends_anyway or self._interrupter.interrupted_at + INTERRUPTED_TIME > now or not self._is_quiet(now):
            return None
        return "an attempt in it was interrupted"

    def _is_quiet(self, now: float) -> bool:
        """Whether to end the process costs nothing: nothing runs, or only jobs that take less than a second or so."""
        if now < self._next_quiet_check:
            return False
        self._next_quiet_check = now + QUIET_CHECK
        running = self._interrupter.running()
        ran_before, self._ran_before = self._ran_before, running
        return not running or (ran_before is not None and not running & ran_before)

"""When a worker process has done its share, and is to be replaced.

Pure but for the look at the process's memory. Times are monotonic seconds.
"""

from ..log_format import counted
from .memory import resident_mb
from .options import WorkerOptions

MEMORY_CHECK = 1.0
"""Seconds between two looks at the memory in use."""


class Recycling:
    """The limits of `--max-jobs-per-worker` and `--max-memory-mb`."""

    def __init__(self, options: WorkerOptions) -> None:
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
        return None

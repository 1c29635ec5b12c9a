"""A plugin of coverage.py's, for code that is interrupted between any two instructions.

Whenever a function is called, coverage's tracer locks its data by `Collector.lock_data`. That is written in Python: an
interruption that comes in there leaves the lock locked, and every thread of the process waits for it for ever. No
interruption comes in the lock's own methods, which are written in C.
"""

from typing import Any

from coverage.collector import Collector


def coverage_init(registry: Any, options: Any) -> None:
    """Called by coverage.py in every process that it measures."""
    Collector.lock_data = property(lambda self: self.data_lock.acquire)  # type: ignore[method-assign, assignment]
    Collector.unlock_data = property(lambda self: self.data_lock.release)  # type: ignore[method-assign, assignment]

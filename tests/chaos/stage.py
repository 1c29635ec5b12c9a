"""What the faults happen to, and the diary of what was done to it.

Invariant: whatever is broken here stands in `faults`, with its time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from .cluster import Cluster
from .evidence import Fault
from .machines import Machine


class Stage:
    """Strokes may be under way in several threads, each with its own random numbers."""

    def __init__(self, cluster: Cluster, machines: list[Machine]) -> None:
        self.cluster = cluster
        self.machines = machines
        self.faults: list[Fault] = []
        self.over = threading.Event()
        """Set when no new stroke is to begin."""
        self._lock = threading.Lock()

    @contextmanager
    def fault(self, what: str, target: str, *, slows: bool = True, silences: bool = False) -> Iterator[Fault]:
        """Write down what happens in this block."""
        fault = Fault(what, target, time.time(), slows=slows, silences=silences)
        with self._lock:
            self.faults.append(fault)
        yield fault
        fault.ended = time.time()

    def wait(self, seconds: float) -> None:
        """Let it hurt. Not ended by `over`: a fault has its full length."""
        time.sleep(seconds)

    def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait for this, at most so long; whether it came about."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def is_gone(self, pid: int) -> bool:
        """Whether a process has ended."""
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

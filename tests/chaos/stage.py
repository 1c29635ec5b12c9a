"""The cluster and the machines that the faults hit, and the list of the faults.

Invariant: `faults` has every fault with its time.
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
    """The cluster, the machines, and the list of faults. Several threads may cause faults at the same time."""

    def __init__(self, cluster: Cluster, machines: list[Machine]) -> None:
        self.cluster = cluster
        self.machines = machines
        self.faults: list[Fault] = []
        self.over = threading.Event()
        """Set when no new stroke may begin."""
        self._lock = threading.Lock()

    @contextmanager
    def fault(self, what: str, target: str, *, slows: bool = True, silences: bool = False) -> Iterator[Fault]:
        """Add a fault to the list. The fault lasts as long as the `with` block."""
        fault = Fault(what, target, time.time(), slows=slows, silences=silences)
        with self._lock:
            self.faults.append(fault)
        yield fault
        fault.ended = time.time()

    def wait(self, seconds: float) -> None:
        """Let a fault last this number of seconds, even if `over` is set meanwhile."""
        time.sleep(seconds)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, at most this number of seconds. Returns whether it was met."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def is_gone(self, pid: int) -> bool:
        """Whether a process has ended."""
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

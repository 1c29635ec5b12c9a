"""Records which worker processes of all machines were alive, and until when, by looking at them many times a second.

Invariant: the record does not depend on the database or on a log, so that it can contradict both: a worker that the
database calls dead may be alive.
"""

import contextlib
import threading
import time
from collections.abc import Sequence

import psutil

from .evidence import Life
from .machines import Machine

SECONDS_BETWEEN_CHECKS = 0.05
"""Seconds between two checks of the processes."""


class Census:
    """Looks at the processes in a thread, between `start` and `stop`."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._lives: dict[int, Life] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> dict[int, Life]:
        """Stop the thread. Returns the life of each worker process by its process id."""
        self._is_stopped.set()
        self._thread.join()
        return self._lives

    def _run(self) -> None:
        while not self._is_stopped.wait(SECONDS_BETWEEN_CHECKS):
            for machine in self._machines:
                self._add_new_workers(machine)
            for pid, process in list(self._processes.items()):
                if _is_alive(process):
                    self._lives[pid].last_seen = time.time()
                else:
                    del self._processes[pid]
                    self._lives[pid].is_over = True

    def _add_new_workers(self, machine: Machine) -> None:
        """Add the new worker processes of a machine."""
        for pid in machine.pids[1:]:
            if pid not in self._processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._processes[pid] = psutil.Process(pid)
                    self._lives[pid] = Life(machine.name, time.time(), time.time())


def _is_alive(process: psutil.Process) -> bool:
    """Whether the process exists, even if it is stopped, and is not a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False

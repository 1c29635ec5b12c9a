"""Who lived, and until when: the processes of all machines, looked at from outside, many times a second.

Invariant: nothing here is taken from the database or from a log, so that a worker that is said to be dead can be asked
for.
"""

import contextlib
import threading
import time
from collections.abc import Sequence

import psutil

from .evidence import Life
from .machines import Machine

LOOK = 0.05
"""Seconds between two looks."""


class Census:
    """Looks in a thread of its own between `start` and `stop`."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._lives: dict[int, Life] = {}
        self._seen: dict[int, psutil.Process] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> dict[int, Life]:
        """End; the life of each worker process, by its id."""
        self._over.set()
        self._thread.join()
        return self._lives

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            for machine in self._machines:
                self._meet(machine)
            for pid, process in list(self._seen.items()):
                if _is_alive(process):
                    self._lives[pid].last_seen = time.time()
                else:
                    del self._seen[pid]
                    self._lives[pid].is_over = True

    def _meet(self, machine: Machine) -> None:
        """Take in the workers that are new."""
        for pid in machine.pids[1:]:
            if pid not in self._seen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._seen[pid] = psutil.Process(pid)
                    self._lives[pid] = Life(machine.name, time.time(), time.time())


def _is_alive(process: psutil.Process) -> bool:
    """Whether it is there, running or stopped, and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False

"""Finds workers whose control loop is frozen, whatever the reason, and kills them.

A task may keep Python's interpreter lock (by a regular expression that backtracks for ever), a log handler may block,
or a process may be stopped. No thread of the worker can detect that. Its supervisor can: the stamps in their shared
memory stay the same.

Invariant: the supervisor kills a worker only after it has observed the stamps without a gap, for longer than any wait
of a control loop may take.
"""

import contextlib
import faulthandler
import signal
from collections.abc import Sequence
from enum import Enum, auto

from ..events import liveness_logs
from ..worker.hanging_queues import Unchanged
from ..worker.loop import Periodic
from .processes import WorkerProcess

INTERVAL = 1.0
"""Seconds between two checks."""

SILENT_AFTER = 10.0
"""Seconds without a stamp after which a log line says so."""

FROZEN_AFTER = 30.0
"""Seconds without a stamp after which a worker is killed, unless its last stamp announced a longer wait."""

STACKS_TIME = 1.0
"""Seconds that the worker gets to print its stacks before it is killed."""

STACKS_SIGNAL = signal.SIGUSR2

STANDARD_ERROR = 2
"""The file descriptor of standard error, even if `sys.stderr` was replaced."""


class Step(Enum):
    """The steps that the watchdog takes, in this order, against a worker whose stamps stay the same."""

    LOGGED = auto()
    STACKS_REQUESTED = auto()
    KILLED = auto()


class Watchdog(Periodic):
    name = "watchdog"
    loop_handles_errors = False

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._processes = processes
        self._stamps = Unchanged(longest_gap=FROZEN_AFTER / 2)
        self._last_steps: dict[str, Step] = {}  # by the id of the process; none while its stamps change

    def run(self, now: float) -> None:
        self.run_again_in(INTERVAL)
        filled = [process for process in self._processes if process.pid]
        self._stamps.look({process.id: process.stamps.last() for process in filled}, now, now)
        ids = {process.id for process in filled}
        self._last_steps = {id: step for id, step in self._last_steps.items() if id in ids}
        for process in filled:
            self._decide(process, self._stamps.seconds(process.id))

    @property
    def frozen(self) -> list[str]:
        """The names of the workers whose stamps stay the same for so long that the watchdog ends them."""
        return [
            process.name
            for process in self._processes
            if self._last_steps.get(process.id) in (Step.STACKS_REQUESTED, Step.KILLED)
        ]

    def _decide(self, process: WorkerProcess, silent: float) -> None:
        last_step = self._last_steps.get(process.id)
        limit = max(FROZEN_AFTER, process.stamps.last().within)
        if silent < SILENT_AFTER:
            if self._last_steps.pop(process.id, None):
                liveness_logs.worker_back(process.name)
        elif last_step is None:
            self._last_steps[process.id] = Step.LOGGED
            liveness_logs.worker_silent(process.name, silent)
        elif silent >= limit and last_step is Step.LOGGED:
            self._last_steps[process.id] = Step.STACKS_REQUESTED
            process.signal(STACKS_SIGNAL)
            self.run_again_in(STACKS_TIME)
        elif last_step is Step.STACKS_REQUESTED:
            self._last_steps[process.id] = Step.KILLED
            liveness_logs.worker_frozen(process.name, silent)
            process.kill_frozen(silent)


def print_stacks_on_signal() -> None:
    """In a worker: write the stack of each thread to standard error on `STACKS_SIGNAL`.

    A handler in C does that, which needs no interpreter lock. A handler set by the project is kept.
    """
    if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no standard error
            faulthandler.register(STACKS_SIGNAL, file=STANDARD_ERROR, all_threads=True)

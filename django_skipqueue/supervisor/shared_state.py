"""Shows a steward the state of one of its supervisors, in memory that both share.

Invariant: the steward never waits for a supervisor, and sees at any time whether one hangs.
"""

import mmap
from collections.abc import Callable, Sequence

from ..runtime.service import Periodic
from ..runtime.worker_options import WorkerOptions
from .pulse import Pulse
from .state import DatabaseState, SupervisorState, WorkerState

INTERVAL = 0.5
"""Seconds between two times at which the supervisor shows its state. Its pulse it shows at once."""

COUNTS = len(WorkerState._fields) - 2
"""The numbers of a worker between its name and the time of its heartbeat."""

SIZE = COUNTS + 1
"""The numbers of a worker."""


class SharedState:
    """Made by the steward before the fork that shares it. The supervisor writes, the steward reads."""

    def __init__(self, options: WorkerOptions) -> None:
        self.pulse = Pulse()
        self._alias = options.database
        self._names = options.worker_names
        # As in `runtime/standby.py`: an item of a view is written and read as a whole.
        memory = memoryview(mmap.mmap(-1, 8 * (1 + SIZE * len(self._names))))
        self._counts, self._times = memory.cast("q"), memory.cast("d")

    def write(self, state: SupervisorState) -> None:
        self._counts[0] = state.database
        for start, worker in zip(self._starts(), state.workers, strict=True):
            for place, count in enumerate(worker[1:-1], start):
                self._counts[place] = count
            self._times[start + COUNTS] = worker.heartbeat_at

    def read(self) -> SupervisorState:
        workers = (self._worker(name, start) for name, start in zip(self._names, self._starts(), strict=True))
        database = DatabaseState(self._counts[0])
        return SupervisorState(self._alias, self.pulse.turned_at, self.pulse.late_at, database, tuple(workers))

    def _starts(self) -> range:
        return range(1, 1 + SIZE * len(self._names), SIZE)

    def _worker(self, name: str, start: int) -> WorkerState:
        counts = self._counts[start : start + COUNTS]
        return WorkerState._make((name, *counts, self._times[start + COUNTS]))


class ShowState(Periodic):
    name = "show_state"
    loop_handles_errors = False

    def __init__(self, shared: SharedState, states: Callable[[], Sequence[SupervisorState]]) -> None:
        """`states` returns the state of this supervisor alone."""
        self._shared = shared
        self._states = states

    def run(self, now: float) -> None:
        (state,) = self._states()
        self._shared.write(state)
        self.run_again_in(INTERVAL)

"""The state of a supervisor and of its workers, for probes, metrics, the service manager and a steward.

Invariant: the steward never waits for a supervisor. In memory that both share, it sees at any time whether one hangs.
"""

import mmap
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from ..worker.loop import Periodic
from ..worker.options import WorkerOptions
from .liveness import Watchdog
from .processes import WorkerProcess

LOOP_LATE_AFTER = 30.0
"""Seconds from one turn of the loop to the next, at most, unless the loop announces that statements may take longer."""

TURNED_AT, LATE_AT = range(2)
"""The places of the times in the memory of `Pulse`."""


class Pulse:
    """Shows in shared memory that a control loop turns. Only the loop's thread writes. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._times = memoryview(mmap.mmap(-1, 16)).cast("d")
        self.turn()

    @property
    def turned_at(self) -> float:
        return self._times[TURNED_AT]

    @property
    def late_at(self) -> float:
        """By when the loop turns again, unless it hangs."""
        return self._times[LATE_AT]

    def turn(self, within: float = 0.0) -> None:
        """Show that the loop turns, and that it turns again within this many seconds, or `LOOP_LATE_AFTER`."""
        now = time.monotonic()
        self._times[LATE_AT] = now + max(within, LOOP_LATE_AFTER)
        self._times[TURNED_AT] = now


class DatabaseState(IntEnum):
    UNKNOWN = 0
    """The supervisor has sent no statement yet."""
    REACHED = 1
    LOST = 2


class WorkerProcessState(NamedTuple):
    """One worker, whether its process runs or not."""

    name: str
    pid: int = 0
    """0: no process runs."""
    has_started: bool = False
    is_frozen: bool = False
    """Whether its control loop is frozen, so that the watchdog ends it."""
    starts: int = 0
    """How many processes were started under this name."""
    jobs_done: int = 0
    jobs_running: int = 0
    slots: int = 0
    """0: the process runs no jobs, and hands its claimed jobs on. Then `jobs_running` and `slots_free` count the jobs
    that processes of its kind have handed on, and could hand on."""
    slots_free: int = 0
    heartbeat_at: float = 0.0
    """When the supervisor last wrote the worker's heartbeat, in monotonic seconds."""


class SupervisorState(NamedTuple):
    """One supervisor. Times are monotonic seconds."""

    alias: str
    """The alias of its database."""
    turned_at: float
    """When its control loop last turned."""
    late_at: float
    """By when it turns again, unless it hangs."""
    database: DatabaseState
    workers: tuple[WorkerProcessState, ...]

    @property
    def has_worker(self) -> bool:
        return any(worker.has_started for worker in self.workers)

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.late_at


def observe(
    alias: str, processes: Sequence[WorkerProcess], *, pulse: Pulse, watchdog: Watchdog, database: DatabaseState
) -> SupervisorState:
    """The present state of a supervisor with these processes. Any of its threads may call this. Sends no statement."""
    frozen, workers = watchdog.frozen, list[WorkerProcessState]()
    for process in processes:
        shared = process.shared if process.pid else None
        state = WorkerProcessState(
            process.name,
            process.pid,
            process.has_started,
            process.name in frozen,
            process.starts,
            process.jobs_done,
            shared.running if shared else 0,
            process.concurrency,
            shared.slots if shared else 0,
            shared.heartbeat_at if shared else 0.0,
        )
        workers.append(state)
    return SupervisorState(alias, pulse.turned_at, pulse.late_at, database, tuple(workers))


SHOW_SECONDS = 0.5
"""Seconds between two times at which the supervisor shows its state. It shows its pulse in each turn."""

COUNTS_OF_WORKER = len(WorkerProcessState._fields) - 2
"""How many integers a worker has in the memory, between its name and the time of its heartbeat."""

NUMBERS_OF_WORKER = COUNTS_OF_WORKER + 1
"""How many integers and times a worker has in the memory."""


class SharedState:
    """Made by the steward before the fork that shares it. The supervisor writes, the steward reads."""

    def __init__(self, options: WorkerOptions) -> None:
        self.pulse = Pulse()
        self._alias = options.database
        self._names = options.worker_names
        # As in `worker/protocol.py`: an item of a view is written and read as a whole.
        memory = memoryview(mmap.mmap(-1, 8 * (1 + NUMBERS_OF_WORKER * len(self._names))))
        self._counts, self._times = memory.cast("q"), memory.cast("d")

    def write(self, state: SupervisorState) -> None:
        self._counts[0] = state.database
        for start, worker in zip(self._starts(), state.workers, strict=True):
            for place, count in enumerate(worker[1:-1], start):
                self._counts[place] = count
            self._times[start + COUNTS_OF_WORKER] = worker.heartbeat_at

    def read(self) -> SupervisorState:
        workers = [
            WorkerProcessState._make(
                (name, *self._counts[start : start + COUNTS_OF_WORKER], self._times[start + COUNTS_OF_WORKER])
            )
            for name, start in zip(self._names, self._starts(), strict=True)
        ]
        database = DatabaseState(self._counts[0])
        return SupervisorState(self._alias, self.pulse.turned_at, self.pulse.late_at, database, tuple(workers))

    def _starts(self) -> range:
        return range(1, 1 + NUMBERS_OF_WORKER * len(self._names), NUMBERS_OF_WORKER)


class ShowState(Periodic):
    name = "show_state"
    loop_handles_errors = False

    def __init__(self, shared: SharedState, states: Callable[[], Sequence[SupervisorState]]) -> None:
        """states: returns the state of this supervisor alone."""
        self._shared = shared
        self._states = states

    def run(self, now: float) -> None:
        (state,) = self._states()
        self._shared.write(state)
        self.run_again_in(SHOW_SECONDS)

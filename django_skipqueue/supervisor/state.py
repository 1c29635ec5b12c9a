"""The state of a supervisor and of its workers, for health probes, metrics, systemd and the steward.

A steward is the parent process of several supervisors. It reads their state in shared memory, so that it never waits
for a supervisor, and sees at any time whether a supervisor hangs.
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
"""The most seconds from one turn of the control loop to the next, unless the loop announces a longer turn."""

TURNED_AT, LATE_AT = range(2)
"""The positions of the two times in the memory of `Pulse`."""


class Pulse:
    """Shows in shared memory that a control loop runs, with monotonic times. Only the loop's thread writes them."""

    def __init__(self) -> None:
        self._times = memoryview(mmap.mmap(-1, 16)).cast("d")
        self.turn()

    @property
    def turned_at(self) -> float:
        return self._times[TURNED_AT]

    @property
    def late_at(self) -> float:
        """When the loop is late: by then it turns again, unless it hangs."""
        return self._times[LATE_AT]

    def turn(self, within: float = 0.0) -> None:
        """Show that the loop runs, and that its next turn comes within this many seconds, or `LOOP_LATE_AFTER`."""
        now = time.monotonic()
        self._times[LATE_AT] = now + max(within, LOOP_LATE_AFTER)
        self._times[TURNED_AT] = now


class DatabaseState(IntEnum):
    """Whether the supervisor can reach its database."""

    UNKNOWN = 0
    """The supervisor has sent no statement yet."""
    REACHED = 1
    LOST = 2


class WorkerProcessState(NamedTuple):
    """One worker, whether its process runs or not."""

    name: str
    pid: int = 0
    """The process id; 0 if no process runs."""
    has_started: bool = False
    is_frozen: bool = False
    """Whether its control loop is frozen, so that the watchdog kills it."""
    starts: int = 0
    """How many processes were started under this name."""
    jobs_done: int = 0
    jobs_running: int = 0
    slots: int = 0
    """How many jobs it runs at once. 0 if it runs no jobs, but passes them on to another system. Then
    `jobs_running` and `slots_free` count the jobs that were passed on, and the jobs that could be passed on."""
    slots_free: int = 0
    heartbeat_at: float = 0.0
    """When the supervisor last wrote the worker's heartbeat, by the monotonic clock."""


class SupervisorState(NamedTuple):
    """One supervisor and its workers. Times are by the monotonic clock."""

    alias: str
    """The alias of the supervisor's database."""
    turned_at: float
    """When its control loop last turned."""
    late_at: float
    """When its control loop is late: by then it turns again, unless it hangs."""
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
    """The current state of a supervisor with these processes. Any thread may call this. Sends no statements."""
    frozen, workers = watchdog.frozen, list[WorkerProcessState]()
    for process in processes:
        shared = process.shared if process.pid else None
        state = WorkerProcessState(
            name=process.name,
            pid=process.pid,
            has_started=process.has_started,
            is_frozen=process.name in frozen,
            starts=process.starts,
            jobs_done=process.jobs_done,
            jobs_running=shared.running if shared else 0,
            slots=process.concurrency,
            slots_free=shared.slots if shared else 0,
            heartbeat_at=shared.heartbeat_at if shared else 0.0,
        )
        workers.append(state)
    return SupervisorState(alias, pulse.turned_at, pulse.late_at, database, tuple(workers))


SHOW_SECONDS = 0.5
"""Seconds between two times at which the supervisor writes its state. It updates its pulse in each turn."""

COUNTS_OF_WORKER = len(WorkerProcessState._fields) - 2
"""How many integers each worker has in the memory: its fields without the name and the time of the heartbeat."""

NUMBERS_OF_WORKER = COUNTS_OF_WORKER + 1
"""How many integers and times each worker has in the memory."""


class SharedState:
    """Shared memory with the state of a supervisor, made before the fork.

    The supervisor writes the state. The steward, which is the parent of several supervisors, reads it.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.pulse = Pulse()
        self._alias = options.database
        self._names = options.worker_names
        # A memoryview writes and reads each item atomically, see `worker/protocol.py`.
        # It has 8 bytes for each number: first the state of the database, then the numbers of each worker.
        memory = memoryview(mmap.mmap(-1, 8 * (1 + NUMBERS_OF_WORKER * len(self._names))))
        self._counts, self._times = memory.cast("q"), memory.cast("d")

    def write(self, state: SupervisorState) -> None:
        self._counts[0] = state.database
        for start, worker in zip(self._start_positions(), state.workers, strict=True):
            for position, count in enumerate(worker[1:-1], start):  # without the name and the heartbeat's time
                self._counts[position] = count
            self._times[start + COUNTS_OF_WORKER] = worker.heartbeat_at

    def read(self) -> SupervisorState:
        workers = [
            WorkerProcessState._make(
                (name, *self._counts[start : start + COUNTS_OF_WORKER], self._times[start + COUNTS_OF_WORKER])
            )
            for name, start in zip(self._names, self._start_positions(), strict=True)
        ]
        database = DatabaseState(self._counts[0])
        return SupervisorState(self._alias, self.pulse.turned_at, self.pulse.late_at, database, tuple(workers))

    def _start_positions(self) -> range:
        return range(1, 1 + NUMBERS_OF_WORKER * len(self._names), NUMBERS_OF_WORKER)


class ShowState(Periodic):
    """A service that writes the supervisor's state to the shared memory."""

    name = "show_state"
    loop_handles_errors = False

    def __init__(self, shared: SharedState, states: Callable[[], Sequence[SupervisorState]]) -> None:
        """states: returns a list with the state of this supervisor."""
        self._shared = shared
        self._states = states

    def run(self, now: float) -> None:
        (state,) = self._states()
        self._shared.write(state)
        self.run_again_in(SHOW_SECONDS)

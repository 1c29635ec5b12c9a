"""The state of a supervisor and of its workers: what probes, metrics and the service manager are shown."""

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from .process import WorkerProcess
from .pulse import Pulse
from .watchdog import Watchdog


class DatabaseState(IntEnum):
    UNKNOWN = 0
    """It has sent none yet."""
    REACHED = 1
    LOST = 2


class WorkerState(NamedTuple):
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
    """Of a relay: how many jobs are with its carrier, or on their way there, by all of its relays."""
    slots: int = 0
    """Of a relay without a meaning."""
    slots_free: int = 0
    """Of a relay: how many jobs it could hand over at once, by the window of its carrier."""
    is_relay: bool = False
    heartbeat_at: float = 0.0
    """When the supervisor last wrote its heartbeat, in monotonic seconds."""


class SupervisorState(NamedTuple):
    """One supervisor. Times are monotonic seconds."""

    alias: str
    """The alias of its database."""
    turned_at: float
    """When its control loop last turned."""
    late_at: float
    """By when it turns again, unless it hangs."""
    database: DatabaseState
    workers: tuple[WorkerState, ...]

    @property
    def has_worker(self) -> bool:
        return any(worker.has_started for worker in self.workers)

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.late_at


def observe(
    alias: str, processes: Sequence[WorkerProcess], *, pulse: Pulse, watchdog: Watchdog, database: DatabaseState
) -> SupervisorState:
    """The state now of a supervisor with these processes. May be called in any of its threads. Sends no statement."""
    frozen = watchdog.frozen
    workers = tuple(_state_of(process, is_frozen=process.name in frozen) for process in processes)
    return SupervisorState(alias, pulse.turned_at, pulse.late_at, database, workers)


def _state_of(process: WorkerProcess, *, is_frozen: bool) -> WorkerState:
    standby = process.standby if process.pid else None
    return WorkerState(
        process.name,
        process.pid,
        process.has_started,
        is_frozen,
        process.starts,
        process.jobs_done,
        standby.running if standby else 0,
        process.concurrency,
        standby.slots if standby else 0,
        process.is_relay,
        standby.heartbeat_at if standby else 0.0,
    )

"""Finds out which workers live: writes heartbeats, kills frozen workers, and decides which other workers are dead.

A supervisor writes the rows of its workers with their heartbeats, and reads what operators request of the workers.

Invariant: a worker of another supervisor is dead when this supervisor has observed the worker without a gap for a whole
worker timeout, by its own monotonic clock, and the worker's heartbeat has not changed. No jump of the database's clock
makes a live worker look dead. While a supervisor cannot read heartbeats, other processes may be unable to write them,
because the database is down or locked. So after a gap, or an error in its own heartbeat, the supervisor starts its
observation again. Here the supervisor deletes only the rows of workers that died with their machine.

The watchdog observes the supervisor's own live processes. A task may keep Python's interpreter lock (by a regular
expression that backtracks for ever), a log handler may block, or a process may be stopped. No thread of the worker can
detect this, but its supervisor can: the stamps in their shared memory do not change. Invariant: the supervisor kills a
worker only after it has observed the stamps without a gap, for longer than any wait of a control loop may take.
"""

import contextlib
import faulthandler
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any

from ..events import liveness_logs
from ..queue.notify import WORKERS_PAYLOAD
from ..queue.store import Store
from ..values.records import NEVER
from ..worker.control_loop import worker_row
from ..worker.loop import Periodic
from ..worker.options import WorkerOptions
from ..worker.watchers import resident_mb_of
from .processes import WorkerProcess


class Heartbeat(Periodic):
    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        *,
        workers: Callable[[], Sequence[Mapping[str, Any]]],
        interval: float,
        written: Callable[[float], object],
        requested: Callable[[Mapping[str, str]], object],
    ) -> None:
        """workers: returns the rows of the running workers. interval: in seconds.

        written: called after each success, with the time at which the statement was sent, in monotonic seconds.
        requested: called after each success with the open requests of operators, by the id of the worker.
        """
        self._written = written
        self._requested = requested
        self._store = store
        self._workers = workers
        self._interval = interval

    def run(self, now: float) -> None:
        requests = self._store.heartbeat_workers(self._workers())
        self._written(now)
        self.run_again_in(self._interval)
        if requests:
            self._requested(requests)

    def notified(self, payloads: Collection[str]) -> None:
        """Read the requests at once: there is a new one. An error's back-off is not cut short."""
        if WORKERS_PAYLOAD in payloads and self.due_at < NEVER and not self.has_failed:
            self.due_at = 0.0


def rows_of(options: WorkerOptions, processes: Sequence[WorkerProcess]) -> list[Mapping[str, Any]]:
    return [
        worker_row(
            options,
            id=process.id,
            name=process.name,
            concurrency=process.concurrency,
            pid=process.pid,
            memory_mb=resident_mb_of(process.pid),
            jobs_done=process.stamps.last().jobs_done,
        )
        for process in processes
        if process.pid
    ]


class Unchanged:
    """For each name, its last value and since when the value has not changed. Times are monotonic seconds.

    Invariant: only the monotonic clock of this process counts, and only time without a gap between two observations. So
    neither a clock that jumps nor a process that slept makes a value look old.
    """

    def __init__(self, *, longest_gap: float) -> None:
        """longest_gap: the seconds between two calls of `observe` after which all values are forgotten."""
        self._longest_gap = longest_gap
        self._began = self._ended = float("-inf")
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def observe(self, values: Mapping[str, Hashable], began: float, ended: float) -> bool:
        """Note the values, read at some time between `began` and `ended`. A missing name is forgotten.

        Returns False if the gap was too long, so that all values are new.
        """
        goes_on = ended - self._ended <= self._longest_gap
        before = self._seen if goes_on else {}
        self._began, self._ended = began, ended
        self._seen = {
            name: before[name] if name in before and before[name][0] == value else (value, ended)
            for name, value in values.items()
        }
        return goes_on

    def seconds(self, name: str) -> float:
        """For how long, at least, the value had not changed at the last observation."""
        return max(0.0, self._began - self._seen[name][1])


class DeadWorkers:
    def __init__(
        self, store: Store, *, timeout: float, own: Callable[[], Collection[str]], seen: Callable[[list[str]], object]
    ) -> None:
        """own: returns the ids of this supervisor's live processes. seen: called with the ids of other live workers."""
        self.ids: list[str] = []
        """The ids of the dead workers."""
        self.locked_before: datetime | None = None
        """A database time at least one worker timeout old; `None` until this supervisor has observed that long."""
        self.next_death = NEVER
        """The earliest time at which another worker may be dead, in monotonic seconds."""
        self._store = store
        self._timeout = timeout
        self._own = own
        self._seen = seen
        self._heartbeats = Unchanged(longest_gap=timeout / 2)
        self.times: deque[tuple[float, datetime]] = deque()  # pairs of monotonic and database time

    def restart_observation(self) -> None:
        """Forget all observations: the next `observe` is the first."""
        self.ids, self.locked_before, self.next_death = [], None, NEVER
        self._heartbeats = Unchanged(longest_gap=self._timeout / 2)
        self.times.clear()

    def observe(self) -> None:
        began = time.monotonic()
        database_time, heartbeats = self._store.heartbeats()
        ended = time.monotonic()
        for id in self._own():
            heartbeats.pop(id, None)
        if not self._heartbeats.observe(heartbeats, began, ended):
            self.times.clear()
        silent = {id: self._heartbeats.seconds(id) for id in heartbeats}
        self.ids = sorted(id for id, seconds in silent.items() if seconds >= self._timeout)
        longest = max((seconds for seconds in silent.values() if seconds < self._timeout), default=0.0)
        self._seen([id for id in silent if id not in self.ids])
        self.next_death = ended + self._timeout - longest
        self._note_time(began, ended, database_time)

    def _note_time(self, began: float, ended: float, database_time: datetime) -> None:
        """Note the database time, and set `locked_before` to a database time of at least a worker timeout ago."""
        if self.times and database_time < self.times[-1][1]:  # the clock was set back, so earlier times mean nothing
            self.times.clear()
            self.locked_before = None
        if not self.times or ended - self.times[-1][0] > self._timeout / 16:
            self.times.append((ended, database_time))
        while len(self.times) > 1 and self.times[1][0] <= began - self._timeout:
            self.times.popleft()
        oldest, its_time = self.times[0]
        self.locked_before = its_time if oldest <= began - self._timeout else None


class DeadSessions:
    """Ends and logs the sessions of dead workers. Logs once that its role may not end the rest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left = 0

    def end(self, worker_ids: Sequence[str]) -> None:
        ended, left = self._store.end_sessions(worker_ids)
        if ended:
            liveness_logs.sessions_ended(self._store.alias, ended)
        if left > self._left:
            liveness_logs.sessions_left(self._store.alias, left)
        self._left = left


PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two batches of deleted rows."""

KEEP_DEAD_WORKERS = 3600.0
"""How many seconds the admin shows a worker after its machine died."""


class PruneWorkers(Periodic):
    """Deletes the rows of workers that died with their machine, once the workers hold no job."""

    name = "prune_workers"

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float) -> None:
        self._store = store
        self._dead = dead
        self._age = max(KEEP_DEAD_WORKERS, timeout)

    def run(self, now: float) -> None:
        if self._dead.ids:
            self._store.prune_workers(self._dead.ids, age=self._age)
        self.run_again_in(PRUNE_WORKERS_SECONDS)


WATCH_SECONDS = 1.0
"""Seconds between two checks of the stamps."""

SILENT_AFTER = 10.0
"""Seconds without a stamp after which a log line says so."""

FROZEN_AFTER = 30.0
"""Seconds without a stamp after which the supervisor kills a worker, unless its last stamp announced a longer wait."""

STACKS_TIME = 1.0
"""Seconds that the worker gets to print its stacks before the supervisor kills it."""

STACKS_SIGNAL = signal.SIGUSR2

STANDARD_ERROR = 2
"""The file descriptor of standard error, even if `sys.stderr` was replaced."""


class Step(Enum):
    """The steps of the watchdog, in this order, against a worker whose stamps do not change."""

    LOGGED = auto()
    STACKS_REQUESTED = auto()
    KILLED = auto()


class Watchdog(Periodic):
    name = "watchdog"
    loop_handles_errors = False

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._processes = processes
        self._stamps = Unchanged(longest_gap=FROZEN_AFTER / 2)
        self._last_steps: dict[str, Step] = {}  # by the id of the process, whose stamps do not change

    def run(self, now: float) -> None:
        self.run_again_in(WATCH_SECONDS)
        filled = [process for process in self._processes if process.pid]
        self._stamps.observe({process.id: process.stamps.last() for process in filled}, now, now)
        ids = {process.id for process in filled}
        self._last_steps = {id: step for id, step in self._last_steps.items() if id in ids}
        for process in filled:
            self._decide(process, self._stamps.seconds(process.id))

    @property
    def frozen(self) -> list[str]:
        """The names of the workers that the watchdog is ending, because their stamps have not changed for too long."""
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

    The handler is in C, and needs no interpreter lock. A handler of the project is kept.
    """
    if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no standard error
            faulthandler.register(STACKS_SIGNAL, file=STANDARD_ERROR, all_threads=True)

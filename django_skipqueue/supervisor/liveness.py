"""Find out which workers are alive: write heartbeats, kill frozen workers, and find dead workers of other supervisors.

A supervisor writes the rows of its workers with their heartbeats, and reads operators' requests to the workers.

A worker of another supervisor counts as dead if its heartbeat has not changed for a whole worker timeout, while this
supervisor has read it regularly. The time is measured by this process's monotonic clock, so that a jump of the
database's clock makes no live worker look dead. If this supervisor cannot read heartbeats, the database may be down or
locked, and other processes may be unable to write heartbeats. So after a gap, or an error in its own heartbeat, the
supervisor starts its observation again.

The watchdog observes the supervisor's own processes. A process may freeze because a task holds Python's interpreter
lock (in a slow regular expression, for example), because a log handler blocks, or because somebody has stopped the
process. No thread of the worker can detect this. But its supervisor sees that the stamps in the shared memory do not
change. It kills a worker only after it has observed this for longer than any wait of a control loop may take.
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
    """A service that writes the heartbeats of the supervisor's workers."""

    name = "heartbeat"

    def __init__(
        self,
        store: Store,
        *,
        workers: Callable[[], Sequence[Mapping[str, Any]]],
        interval: float,
        on_written: Callable[[float], object],
        on_requests: Callable[[Mapping[str, str]], object],
    ) -> None:
        """workers: returns the rows of the running workers. interval: in seconds.

        on_written: called after each success with the time when the statement was sent, by the monotonic clock.
        on_requests: called after each success with the open requests of operators, by worker id.
        """
        self._on_written = on_written
        self._on_requests = on_requests
        self._store = store
        self._workers = workers
        self._interval = interval

    def run(self, now: float) -> None:
        requests = self._store.heartbeat_workers(self._workers())
        self._on_written(now)
        self.run_again_in(self._interval)
        if requests:
            self._on_requests(requests)

    def notified(self, payloads: Collection[str]) -> None:
        """If there is a new request, read it at once, unless this service waits after an error."""
        if WORKERS_PAYLOAD in payloads and self.due_at < NEVER and not self.has_failed:
            self.due_at = 0.0


def rows_of(options: WorkerOptions, processes: Sequence[WorkerProcess]) -> list[Mapping[str, Any]]:
    """The columns of the rows of all running processes."""
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
    """Observes a value for each name, and knows for how long each value has not changed.

    Time is measured by this process's monotonic clock. After a gap between two observations, all times start again. So
    neither a clock that jumps nor a process that slept makes a value look old.
    """

    def __init__(self, *, longest_gap: float) -> None:
        """longest_gap: if `observe` is not called for more than this many seconds, all values are forgotten."""
        self._longest_gap = longest_gap
        self._began = self._ended = float("-inf")
        self._seen: dict[str, tuple[Hashable, float]] = {}  # each value, and when it was first observed

    def observe(self, values: Mapping[str, Hashable], began: float, ended: float) -> bool:
        """Note the values, which were read between `began` and `ended`. Names that are missing are forgotten.

        Returns False if the gap since the last observation was too long, so that all values count as new.
        """
        has_no_gap = ended - self._ended <= self._longest_gap
        earlier = self._seen if has_no_gap else {}
        self._began, self._ended = began, ended
        self._seen = {
            name: earlier[name] if name in earlier and earlier[name][0] == value else (value, ended)
            for name, value in values.items()
        }
        return has_no_gap

    def seconds(self, name: str) -> float:
        """For how many seconds, at least, the value had not changed at the last observation."""
        return max(0.0, self._began - self._seen[name][1])


class DeadWorkers:
    """Finds dead workers of other supervisors."""

    def __init__(
        self, store: Store, *, timeout: float, own: Callable[[], Collection[str]], seen: Callable[[list[str]], object]
    ) -> None:
        """own: returns the ids of this supervisor's live processes. seen: called with the ids of other live workers."""
        self.ids: list[str] = []
        """The ids of the dead workers."""
        self.locked_before: datetime | None = None
        """A database time at least one worker timeout ago; `None` until this supervisor has observed for so long."""
        self.next_death = NEVER
        """The earliest time at which another worker may count as dead, by the monotonic clock."""
        self._store = store
        self._timeout = timeout
        self._own = own
        self._seen = seen
        self._heartbeats = Unchanged(longest_gap=timeout / 2)
        self.times: deque[tuple[float, datetime]] = deque()  # pairs of a monotonic time and a database time

    def restart_observation(self) -> None:
        """Forget all observations, as if `observe` was never called."""
        self.ids, self.locked_before, self.next_death = [], None, NEVER
        self._heartbeats = Unchanged(longest_gap=self._timeout / 2)
        self.times.clear()

    def observe(self) -> None:
        """Read the heartbeats of all workers, and update the attributes."""
        began = time.monotonic()
        database_time, heartbeats = self._store.heartbeats()
        ended = time.monotonic()
        for id in self._own():
            heartbeats.pop(id, None)
        if not self._heartbeats.observe(heartbeats, began, ended):
            self.times.clear()
        silences = {id: self._heartbeats.seconds(id) for id in heartbeats}
        self.ids = sorted(id for id, seconds in silences.items() if seconds >= self._timeout)
        longest_silence = max((seconds for seconds in silences.values() if seconds < self._timeout), default=0.0)
        self._seen([id for id in silences if id not in self.ids])
        self.next_death = ended + self._timeout - longest_silence
        self._note_time(began, ended, database_time)

    def _note_time(self, began: float, ended: float, database_time: datetime) -> None:
        """Note the database time, and set `locked_before` to a database time at least a worker timeout ago."""
        if self.times and database_time < self.times[-1][1]:  # the clock was set back, so earlier times mean nothing
            self.times.clear()
            self.locked_before = None
        if not self.times or ended - self.times[-1][0] > self._timeout / 16:  # so the deque stays short
            self.times.append((ended, database_time))
        while len(self.times) > 1 and self.times[1][0] <= began - self._timeout:
            self.times.popleft()
        noted_at, noted_database_time = self.times[0]
        self.locked_before = noted_database_time if noted_at <= began - self._timeout else None


class DeadSessions:
    """Ends the database sessions of dead workers, and logs how many it ended.

    Logs once if it is not allowed to end a session.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused_count = 0

    def end(self, worker_ids: Sequence[str]) -> None:
        ended, refused_count = self._store.end_sessions(worker_ids)
        if ended:
            liveness_logs.sessions_ended(self._store.alias, ended)
        if refused_count > self._refused_count:
            liveness_logs.sessions_left(self._store.alias, refused_count)
        self._refused_count = refused_count


PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two deletions of worker rows."""

KEEP_DEAD_WORKERS = 3600.0
"""For how many seconds the admin shows a worker after its machine has died."""


class PruneWorkers(Periodic):
    """A service that deletes the rows of workers that died with their machine, and hold no jobs."""

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
"""Seconds between two checks of the workers' stamps."""

SILENT_AFTER = 10.0
"""If a worker writes no stamp for this many seconds, a line is logged."""

FROZEN_AFTER = 30.0
"""If a worker writes no stamp for this many seconds, it is killed, unless its last stamp has announced a longer
wait."""

STACKS_TIME = 1.0
"""How many seconds a frozen worker gets to print its stacks before it is killed."""

STACKS_SIGNAL = signal.SIGUSR2

STANDARD_ERROR = 2
"""The file descriptor of standard error, even if `sys.stderr` was replaced."""


class Step(Enum):
    """What the watchdog does, in this order, if the stamps of a worker do not change."""

    LOGGED = auto()
    STACKS_REQUESTED = auto()
    KILLED = auto()


class Watchdog(Periodic):
    """A service that kills worker processes whose control loops are frozen."""

    name = "watchdog"
    loop_handles_errors = False

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._processes = processes
        self._stamps = Unchanged(longest_gap=FROZEN_AFTER / 2)
        self._last_steps: dict[str, Step] = {}  # the last step against each silent process, by its id

    def run(self, now: float) -> None:
        self.run_again_in(WATCH_SECONDS)
        running = [process for process in self._processes if process.pid]
        self._stamps.observe({process.id: process.stamps.last() for process in running}, now, now)
        ids = {process.id for process in running}
        self._last_steps = {id: step for id, step in self._last_steps.items() if id in ids}
        for process in running:
            self._decide(process, self._stamps.seconds(process.id))

    @property
    def frozen(self) -> list[str]:
        """The names of the frozen workers, which the watchdog is about to kill or has killed."""
        return [
            process.name
            for process in self._processes
            if self._last_steps.get(process.id) in (Step.STACKS_REQUESTED, Step.KILLED)
        ]

    def _decide(self, process: WorkerProcess, silent_seconds: float) -> None:
        """Take the next step against a process whose stamps have not changed for this many seconds."""
        last_step = self._last_steps.get(process.id)
        limit = max(FROZEN_AFTER, process.stamps.last().within)
        if silent_seconds < SILENT_AFTER:
            if self._last_steps.pop(process.id, None):
                liveness_logs.worker_back(process.name)
        elif last_step is None:
            self._last_steps[process.id] = Step.LOGGED
            liveness_logs.worker_silent(process.name, silent_seconds)
        elif silent_seconds >= limit and last_step is Step.LOGGED:
            self._last_steps[process.id] = Step.STACKS_REQUESTED
            process.signal(STACKS_SIGNAL)
            self.run_again_in(STACKS_TIME)
        elif last_step is Step.STACKS_REQUESTED:
            self._last_steps[process.id] = Step.KILLED
            liveness_logs.worker_frozen(process.name, silent_seconds)
            process.kill_frozen(silent_seconds)


def print_stacks_on_signal() -> None:
    """Make this worker write the stack of each thread to standard error on `STACKS_SIGNAL`.

    The signal handler is written in C, and needs no interpreter lock. A handler of the project is not replaced.
    """
    if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # there may be no standard error
            faulthandler.register(STACKS_SIGNAL, file=STANDARD_ERROR, all_threads=True)

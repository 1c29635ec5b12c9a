"""Decides which workers are dead, ends the database sessions that they left behind, and deletes their rows.

Invariant: a worker is dead when this supervisor has observed it without a gap for a whole worker timeout, by its own
monotonic clock, and its heartbeat has not changed. No jump of the database's clock makes a live worker look dead. While
a supervisor could not read heartbeats, other processes may have been unable to write them, for the same reason: the
database was down or locked. So after a gap, or an error in its own heartbeat, the supervisor starts its observation
again from the beginning. The watchdog observes the supervisor's own live processes.

The rows that are deleted here are those of workers that died with their machine.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from ..events import liveness_logs
from ..queue.store import Store
from ..values.records import NEVER
from ..worker.hanging_queues import Unchanged
from ..worker.loop import Periodic


class DeadWorkers:
    def __init__(
        self, store: Store, *, timeout: float, own: Callable[[], Collection[str]], seen: Callable[[list[str]], object]
    ) -> None:
        """`own` returns the ids of this supervisor's live processes. `seen` is called with the other live workers."""
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
        self._times: deque[tuple[float, datetime]] = deque()  # pairs of monotonic and database time

    def restart_observation(self) -> None:
        """Forget all observations: the next `look` is the first one."""
        self.ids, self.locked_before, self.next_death = [], None, NEVER
        self._heartbeats = Unchanged(longest_gap=self._timeout / 2)
        self._times.clear()

    def look(self) -> None:
        began = time.monotonic()
        database_time, heartbeats = self._store.heartbeats()
        ended = time.monotonic()
        for id in self._own():
            heartbeats.pop(id, None)
        if not self._heartbeats.look(heartbeats, began, ended):
            self._times.clear()
        silent = {id: self._heartbeats.seconds(id) for id in heartbeats}
        self.ids = sorted(id for id, seconds in silent.items() if seconds >= self._timeout)
        longest = max((seconds for seconds in silent.values() if seconds < self._timeout), default=0.0)
        self._seen([id for id in silent if id not in self.ids])
        self.next_death = ended + self._timeout - longest
        self._note_time(began, ended, database_time)

    def _note_time(self, began: float, ended: float, database_time: datetime) -> None:
        """Note the database time, and set `locked_before` to one noted at least a worker timeout ago."""
        if self._times and database_time < self._times[-1][1]:  # the clock was set back: earlier times mean nothing
            self._times.clear()
            self.locked_before = None
        if not self._times or ended - self._times[-1][0] > self._timeout / 16:
            self._times.append((ended, database_time))
        while len(self._times) > 1 and self._times[1][0] <= began - self._timeout:
            self._times.popleft()
        oldest, its_time = self._times[0]
        self.locked_before = its_time if oldest <= began - self._timeout else None


class DeadSessions:
    """Logs the sessions that it ends, and once those that this role may not end."""

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
"""Seconds between two batches."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""


class PruneWorkers(Periodic):
    """Deletes the rows of workers that died with their machine, once they hold no job any more."""

    name = "prune_workers"

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float) -> None:
        self._store = store
        self._dead = dead
        self._age = max(KEEP_DEAD_WORKERS, timeout)

    def run(self, now: float) -> None:
        if self._dead.ids:
            self._store.prune_workers(self._dead.ids, age=self._age)
        self.run_again_in(PRUNE_WORKERS_SECONDS)

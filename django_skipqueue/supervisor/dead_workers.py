"""Which workers are dead, and what is done about it.

Invariant: a worker is dead when this supervisor has seen the same heartbeat in its row for a whole worker timeout, by
its own monotonic clock, and has looked on all the time. No jump of the database's clock makes a live worker look dead.
Where a supervisor could not look for a while, others may have been as silent for the same reason: the database was
gone, or locked. Then it observes anew. So it does where its own heartbeat was refused. Of its own live processes it is
the watchdog that judges.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime

from ..services.maintenance import Service
from ..store import Store
from ..store.statements import BATCH
from ..values.records import RecoveredJob
from .observing import Unchanged

LONGEST_INTERVAL = 5.0
"""Seconds between two looks at the heartbeats; with a short worker timeout a quarter of it."""

RECOVERED_INTERVAL = 15.0
"""Seconds between two looks for jobs of a dead worker from which nothing could be taken: what is left is locked."""

PRUNE_WORKERS_SECONDS = 60.0
"""Seconds between two looks for the rows of workers that died with their machine."""

KEEP_DEAD_WORKERS = 3600.0
"""Seconds for which the row of a worker that died with its machine stays in the admin."""

NEVER = float("inf")


class DeadWorkers:
    """What one supervisor knows about the workers of all."""

    def __init__(self, store: Store, *, timeout: float, own: Callable[[], Collection[str]]) -> None:
        """`own` names the live processes of this supervisor."""
        self.ids: list[str] = []
        """Who is dead."""
        self.silent_since: datetime | None = None
        """The database's time a worker timeout ago, as it was read then; `None`: the observation is not that old."""
        self.next_death = NEVER
        """The earliest time at which another worker may be dead, in monotonic seconds."""
        self._store = store
        self._timeout = timeout
        self._own = own
        self._heartbeats = Unchanged(longest_gap=timeout / 2)
        self._times: deque[tuple[float, datetime]] = deque()  # by our clock, and by the database's

    def look_away(self) -> None:
        """Forget what was seen: the next look is the first one."""
        self.ids, self.silent_since, self.next_death = [], None, NEVER
        self._heartbeats = Unchanged(longest_gap=self._timeout / 2)
        self._times.clear()

    def look(self) -> None:
        """Read the heartbeats, and judge."""
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
        self.next_death = ended + self._timeout - longest
        self._note_time(began, ended, database_time)

    def _note_time(self, began: float, ended: float, database_time: datetime) -> None:
        """Read off which time of the database's clock is a worker timeout ago, whatever that clock says now."""
        if self._times and database_time < self._times[-1][1]:  # it was set back: what was read before means nothing
            self._times.clear()
            self.silent_since = None
        if not self._times or ended - self._times[-1][0] > self._timeout / 16:
            self._times.append((ended, database_time))
        while len(self._times) > 1 and self._times[1][0] <= began - self._timeout:
            self._times.popleft()
        oldest, its_time = self._times[0]
        self.silent_since = its_time if oldest <= began - self._timeout else None


class Recover(Service):
    """Takes back the jobs of dead workers, and old ones whose `locked_by` names no row of a worker."""

    name = "recover"

    def __init__(
        self,
        store: Store,
        *,
        dead: DeadWorkers,
        timeout: float,
        tell: Callable[[list[RecoveredJob]], None],
        beats: Callable[[], bool] = lambda: True,
    ) -> None:
        """`beats` says whether this supervisor's own heartbeats are written."""
        super().__init__(store)
        self._dead = dead
        self._beats = beats
        self._interval = min(timeout / 4, LONGEST_INTERVAL)
        self._tell = tell
        self._look_at: dict[str, float] = {}  # when to look again for the jobs of a worker, as others had them locked

    def run(self) -> float:
        """See `Service.run`."""
        if not self._beats():
            self._dead.look_away()
            return self._interval
        self._dead.look()
        if self._take_back():
            return 0.0
        return min(self._interval, max(0.0, self._dead.next_death - time.monotonic()))

    def _take_back(self) -> bool:
        """One batch; whether there may be more."""
        now = time.monotonic()
        self._look_at = {id: at for id, at in self._look_at.items() if id in self._dead.ids}
        due = [id for id in self._dead.ids if self._look_at.get(id, 0.0) <= now]
        recovered = self.store.recover(worker_ids=due) if due else []
        if len(recovered) < BATCH:
            self._look_at.update(dict.fromkeys(due, now + RECOVERED_INTERVAL))
            if self._dead.silent_since is not None:
                recovered += self.store.recover_without_worker(locked_before=self._dead.silent_since)
        self._tell(recovered)
        return len(recovered) >= BATCH


class PruneWorkers(Service):
    """Removes the rows of workers that died with their machine, once nothing of theirs is left to recover."""

    name = "prune_workers"

    def __init__(self, store: Store, *, dead: DeadWorkers, timeout: float) -> None:
        super().__init__(store)
        self._dead = dead
        self._age = max(KEEP_DEAD_WORKERS, timeout)

    def run(self) -> float:
        """See `Service.run`."""
        if self._dead.ids:
            self.store.prune_workers(self._dead.ids, age=self._age)
        return PRUNE_WORKERS_SECONDS

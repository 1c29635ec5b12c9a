"""Which workers are dead.

Invariant: a worker is dead when this supervisor has seen the same heartbeat in its row for a whole worker timeout, by
its own monotonic clock, and has looked on all the time. No jump of the database's clock makes a live worker look dead.
Where a supervisor could not look for a while, others may have been as silent for the same reason: the database was
gone, or locked. Then it starts anew, and also after its own heartbeat was refused. Its own live processes are left to
the watchdog.
"""

import time
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime

from ..runtime.service import NEVER
from ..runtime.unchanged import Unchanged
from ..store import Store


class DeadWorkers:
    """What one supervisor knows about the workers of all."""

    def __init__(self, store: Store, *, timeout: float, own: Callable[[], Collection[str]]) -> None:
        """`own` names the live processes of this supervisor."""
        self.ids: list[str] = []
        """Who is dead."""
        self.locked_before: datetime | None = None
        """A time of the database's clock that was read at least a worker timeout ago; `None`: none was."""
        self.next_death = NEVER
        """The earliest time at which another worker may be dead, in monotonic seconds."""
        self._store = store
        self._timeout = timeout
        self._own = own
        self._heartbeats = Unchanged(longest_gap=timeout / 2)
        self._times: deque[tuple[float, datetime]] = deque()  # by our clock, and by the database's

    def restart_observation(self) -> None:
        """Forget what was seen: the next look is the first one."""
        self.ids, self.locked_before, self.next_death = [], None, NEVER
        self._heartbeats = Unchanged(longest_gap=self._timeout / 2)
        self._times.clear()

    def look(self) -> None:
        """Read the heartbeats, and find out who is dead."""
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
            self.locked_before = None
        if not self._times or ended - self._times[-1][0] > self._timeout / 16:
            self._times.append((ended, database_time))
        while len(self._times) > 1 and self._times[1][0] <= began - self._timeout:
            self._times.popleft()
        oldest, its_time = self._times[0]
        self.locked_before = its_time if oldest <= began - self._timeout else None

"""The services of keys: pass permits and tokens on, and have jobs wait again after a queue's limit was lowered.

Invariant: of the unclaimed jobs of a key, a worse job holds a permit or a token for which a better job waits at most
until the next scan.

Queued jobs wait again after the limit or the rate of their queue was lowered or set. Invariant: a running job runs on,
and no further job is admitted until the queue is below its limit.
"""

import time
from collections.abc import Callable, Collection, Mapping

from ...events.events import JobsAdmitted
from ...queue.notify import QUEUES_PAYLOAD, SOON, keys_in, wake
from ...queue.parameters import Admitted
from ...queue.store import Store
from ...worker.loop import Periodic
from .gate import KEYS_AT_ONCE
from .pass_on import Held, contested, pass_on

CONTESTED_SCAN = 1.0
"""Seconds between two scans while jobs wait for permits or tokens that unclaimed jobs hold."""

HELD_UP_SECONDS = 1.0
"""Seconds after which an unclaimed job gives its permit to a job that a worker could start at once."""

PUT_BACK_SECONDS = 60.0
"""How many seconds a job keeps its next permit after it was put back. The pause is needed because a worker with a free
slot may be about to stop, and so not claim: then two jobs would give each other the permit for ever."""

SCAN_SHARE = 1 / 20
"""The largest share of the time that scans may take."""

LEAST_SCAN_PAUSE = 0.05
"""The shortest time in seconds between two scans, even if notifications ask for one."""

Admit = Callable[[Store, Admitted], Mapping[str, int]]
"""Admits jobs by the next gate if they wait there now. Returns the number of all admitted jobs, by queue."""


class PassOn(Periodic):
    """Scans the keys for which jobs wait, and passes on the permits or tokens of unclaimed jobs.

    Scans at once if a better job was enqueued, or a queue was paused.
    """

    def __init__(self, store: Store, *, name: str, held: Held, admit: Admit) -> None:
        self.name = name
        self.urgent: set[str] = set()
        """Keys in which a better job may wait."""
        self._store = store
        self._held = held
        self._admit = admit
        self._scanned_at = float("-inf")
        self._after = ""  # where the next scan resumes
        # A round is one scan of all keys. By the id of each unclaimed job:
        self._first_seen_last_round: dict[int, float] = {}
        self._first_seen_this_round: dict[int, float] = {}
        self._put_back: dict[int, float] = {}  # when each held-up job was put back

    def run(self, now: float) -> None:
        started = self._scanned_at = time.monotonic()
        is_contested = self._scan(now)
        pause = (time.monotonic() - started) * (1 / SCAN_SHARE - 1)
        self.run_again_in(max(CONTESTED_SCAN if is_contested else SOON, pause))

    def notified(self, payloads: Collection[str]) -> None:
        """Scan the named keys at once. If too many keys are named, the next scans find them.

        An error's back-off is not cut short.
        """
        keys = keys_in(payloads, self._held.gate)
        self.urgent.update(keys)
        if len(self.urgent) > KEYS_AT_ONCE:
            self.urgent.clear()
        if (keys or QUEUES_PAYLOAD in payloads) and not self.has_failed:
            self.due_at = min(self.due_at, self._scanned_at + LEAST_SCAN_PAUSE)

    def _scan(self, now: float) -> bool:
        """Return whether jobs wait for permits or tokens that unclaimed jobs hold."""
        urgent, self.urgent = self.urgent, set()
        found = contested(self._store, self._held, after=self._after, limit=KEYS_AT_ONCE)
        if urgent := urgent.union(each.key for each in found if each.is_inverted):
            self._pass_on(urgent)
        if unserved := {id: each.key for each in found for id in each.unserved}:
            self._pass_on(set(unserved.values()), ids=unserved)
        if held_up := {id: each.key for each in found for id in each.held_up if self._is_held_up(id, now)}:
            self._put_back.update(dict.fromkeys(self._pass_on(set(held_up.values()), ids=held_up, idle=True), now))
        self._after = found[-1].key if len(found) == KEYS_AT_ONCE else ""
        if not self._after:
            self._first_seen_last_round, self._first_seen_this_round = self._first_seen_this_round, {}
            self._put_back = {id: at for id, at in self._put_back.items() if now - at < PUT_BACK_SECONDS}
        return any(each.is_inverted or each.unserved or each.held_up for each in found)

    def _pass_on(self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False) -> set[int]:
        """Notify the workers, and send the event. Returns the ids of the jobs that were put back."""
        admitted, put_back = pass_on(self._store, self._held, keys, ids=ids, idle=idle)
        if counts := self._admit(self._store, admitted):
            wake(self._store, counts)
            self._store.send(JobsAdmitted(self._store.alias, counts))
        return put_back

    def _is_held_up(self, id: int, now: float) -> bool:
        first_seen = self._first_seen_this_round[id] = self._first_seen_last_round.get(id, now)
        return now - first_seen >= HELD_UP_SECONDS and id not in self._put_back


SURPLUS_SECONDS = 10.0
"""Seconds between two scans for jobs beyond a limit. A notification announces each change of a limit. Nothing else
makes a surplus."""


class BlockSurplus(Periodic):
    """Scans the queues whose limits or rates were changed, and has one batch of their jobs wait again."""

    def __init__(self, store: Store, *, name: str, block: Callable[[Store], int]) -> None:
        self.name = name
        self._store = store
        self._block = block

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if self._block(self._store) else SURPLUS_SECONDS)

    def notified(self, payloads: Collection[str]) -> None:
        """Scan at once, because a limit may have changed. An error's back-off is not cut short."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self.due_at = 0.0

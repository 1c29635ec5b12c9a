"""The supervisor's services for limits and rates: pass permits and tokens on, and block jobs beyond a lowered limit.

An unclaimed job may hold a permit or a token while a job that should start first waits, but only until the next scan.

If somebody sets or lowers a queue's limit or rate, its queued jobs are blocked again. Running jobs are not stopped, but
no job is admitted until fewer jobs run than the limit allows.
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
"""Seconds between two scans while unclaimed jobs hold permits or tokens for which other jobs wait."""

HELD_UP_SECONDS = 1.0
"""Seconds after which an unclaimed job gives its permit to a job that a worker could start at once."""

PUT_BACK_SECONDS = 60.0
"""After a job was put back, it keeps its next permit for this many seconds. Without this pause, two jobs could take the
permit from each other for ever, because a worker with a free slot may be about to stop, and so not claim."""

SCAN_SHARE = 1 / 20
"""The largest share of the time that scans may take."""

LEAST_SCAN_PAUSE = 0.05
"""The shortest time in seconds between two scans, even if notifications ask for one."""

Admit = Callable[[Store, Admitted], Mapping[str, int]]
"""Admits jobs that now wait at the next gate. Returns the number of all admitted jobs, by queue."""


class PassOn(Periodic):
    """Scans keys with waiting jobs, and passes on permits or tokens that unclaimed jobs hold.

    It scans immediately when a job with a higher priority is enqueued, or a queue is paused.
    """

    def __init__(self, store: Store, *, name: str, held: Held, admit: Admit) -> None:
        self.name = name
        self.urgent: set[str] = set()
        """Keys of which a job with a higher priority may wait."""
        self._store = store
        self._held = held
        self._admit = admit
        self._scanned_at = float("-inf")
        self._after = ""  # where the next scan resumes
        # A round is one scan of all keys. The dictionaries contain times by the ids of unclaimed jobs.
        self._first_seen_last_round: dict[int, float] = {}
        self._first_seen_this_round: dict[int, float] = {}
        self._put_back: dict[int, float] = {}  # when each held-up job was put back

    def run(self, now: float) -> None:
        started = self._scanned_at = time.monotonic()
        is_contested = self._scan(now)
        pause = (time.monotonic() - started) * (1 / SCAN_SHARE - 1)  # then scans take at most this share of the time
        self.run_again_in(max(CONTESTED_SCAN if is_contested else SOON, pause))

    def notified(self, payloads: Collection[str]) -> None:
        """Scan the keys in these notifications immediately. If there are too many, the regular scans find them.

        After an error, wait until the back-off has passed.
        """
        keys = keys_in(payloads, self._held.gate)
        self.urgent.update(keys)
        if len(self.urgent) > KEYS_AT_ONCE:
            self.urgent.clear()
        if (keys or QUEUES_PAYLOAD in payloads) and not self.has_failed:
            self.due_at = min(self.due_at, self._scanned_at + LEAST_SCAN_PAUSE)

    def _scan(self, now: float) -> bool:
        """Scan the next keys. Return whether unclaimed jobs hold permits or tokens for which other jobs wait."""
        urgent, self.urgent = self.urgent, set()
        contests = contested(self._store, self._held, after=self._after, limit=KEYS_AT_ONCE)
        inverted = {contest.key for contest in contests if contest.is_inverted}  # a waiting job should start first
        if urgent := urgent | inverted:
            self._pass_on(urgent)
        if unserved := {id: contest.key for contest in contests for id in contest.unserved}:
            self._pass_on(set(unserved.values()), ids=unserved)
        if held_up := {id: contest.key for contest in contests for id in contest.held_up if self._is_held_up(id, now)}:
            put_back = self._pass_on(set(held_up.values()), ids=held_up, idle=True)
            self._put_back.update(dict.fromkeys(put_back, now))
        self._after = contests[-1].key if len(contests) == KEYS_AT_ONCE else ""
        if not self._after:
            self._first_seen_last_round, self._first_seen_this_round = self._first_seen_this_round, {}
            self._put_back = {
                id: put_back_at for id, put_back_at in self._put_back.items() if now - put_back_at < PUT_BACK_SECONDS
            }
        return any(contest.is_inverted or contest.unserved or contest.held_up for contest in contests)

    def _pass_on(self, keys: Collection[str], *, ids: Collection[int] | None = None, idle: bool = False) -> set[int]:
        """Pass permits or tokens on, and notify the workers. Returns the ids of the jobs that were put back."""
        admitted, put_back = pass_on(self._store, self._held, keys, ids=ids, idle=idle)
        if counts := self._admit(self._store, admitted):
            wake(self._store, counts)
            self._store.send(JobsAdmitted(self._store.alias, counts))
        return put_back

    def _is_held_up(self, id: int, now: float) -> bool:
        """Return whether this unclaimed job has waited for a worker so long that it may lose its permit."""
        first_seen = self._first_seen_this_round[id] = self._first_seen_last_round.get(id, now)
        return now - first_seen >= HELD_UP_SECONDS and id not in self._put_back


SURPLUS_SECONDS = 10.0
"""Seconds between two scans for queued jobs beyond a limit. Scans are rare, because a notification announces each
change of a limit."""


class BlockSurplus(Periodic):
    """Scans the queues whose limit or rate was changed, and blocks one batch of the jobs that exceed it."""

    def __init__(self, store: Store, *, name: str, block: Callable[[Store], int]) -> None:
        self.name = name
        self._store = store
        self._block = block

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if self._block(self._store) else SURPLUS_SECONDS)

    def notified(self, payloads: Collection[str]) -> None:
        """Scan immediately, because a limit may have changed. After an error, wait until the back-off has passed."""
        if QUEUES_PAYLOAD in payloads and not self.has_failed:
            self.due_at = 0.0

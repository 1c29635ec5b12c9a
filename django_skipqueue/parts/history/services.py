"""The services that write this process's counts into the roll-ups, sample the depths, and delete old roll-ups.

Every few seconds the counts are written. Invariant: a process that dies loses the counts of one interval at most.
Counts that could not be written are written again with the next ones, unless PostgreSQL refuses their values. If the
connection broke after the commit, the counts of one interval are added twice.

Once a minute the depths of the queues are written down, and what claims of the deepest ones read.
"""

from typing import Any

from django.db import DatabaseError

from ...queue.observe import queues_now
from ...queue.parameters import is_refused
from ...queue.store import Store
from ...worker.loop import Periodic
from .claim_costs import measure_claim
from .rollups import depths_are_due, prune_rollups, roll_up, roll_up_depths
from .tally import Tally

WRITE_INTERVAL = 10.0
"""Seconds between two writes."""


class WriteRollUps(Periodic):
    """Used by workers and supervisors. Sends no statement if nothing was counted."""

    name = "write_roll_ups"

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally
        self._left: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.run_again_in(WRITE_INTERVAL)

    def run(self, now: float) -> None:
        """Write the counts of the last write, if it failed, and then those since."""
        while self._left or not self._tally.is_empty:
            self._left = self._left or self._tally.take()
            roll_up(self._store, *self._left)
            self._left = None
        self.run_again_in(WRITE_INTERVAL)

    def refused(self, error: BaseException) -> None:
        """Try again later, without the counts if PostgreSQL cannot store their values."""
        if isinstance(error, DatabaseError) and is_refused(error):
            self._left = None
        super().refused(error)


SAMPLE_INTERVAL = 20.0
"""Seconds after which to look again whether this minute has no sample yet."""

MOST_MEASURED = 3
"""Queues of which a claim is measured."""


class SampleDepths(Periodic):
    """One supervisor of all writes the sample of a minute; two at the same moment write the same."""

    name = "sample_depths"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        if depths_are_due(self._store):
            queues = queues_now(self._store)
            deepest = sorted(queues, key=lambda queue: queue.queued, reverse=True)[:MOST_MEASURED]
            costs = [measure_claim(self._store, queue.name) for queue in deepest]
            roll_up_depths(self._store, queues, [cost for cost in costs if cost])
        self.run_again_in(SAMPLE_INTERVAL)


DAY = 86_400.0

KEPT_SECONDS = {60: 3 * DAY, 3600: 90 * DAY, 0: 90 * DAY}
"""Seconds for which roll-ups are kept, by the length of their span: minutes, hours, and those since the beginning if
nothing was added to them."""

PRUNE_INTERVAL = 300.0
"""Seconds between two batches."""


class PruneRollUps(Periodic):
    name = "prune_roll_ups"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(0.0 if prune_rollups(self._store, KEPT_SECONDS) else PRUNE_INTERVAL)

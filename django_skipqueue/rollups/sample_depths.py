"""Writes down the depths of the queues once a minute, and what claims of the deepest ones read."""

from ..runtime.service import Periodic
from ..store import Store

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
        if self._store.depths_are_due():
            queues = self._store.queues_now()
            deepest = sorted(queues, key=lambda queue: queue.queued, reverse=True)[:MOST_MEASURED]
            costs = [self._store.measure_claim(queue.name) for queue in deepest]
            self._store.roll_up_depths(queues, [cost for cost in costs if cost])
        self.run_again_in(SAMPLE_INTERVAL)

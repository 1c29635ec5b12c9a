"""Deletes the buckets of rates that are full."""

from ...queue.store import Store
from ...worker.loop import Periodic
from .admit import prune_rates

PRUNE_RATES_SECONDS = 60.0
"""Seconds between two batches."""


class PruneRates(Periodic):
    """Deletes the buckets of rates that have been full for a while: a missing one means the same."""

    name = "prune_rates"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(1.0 if prune_rates(self._store) else PRUNE_RATES_SECONDS)

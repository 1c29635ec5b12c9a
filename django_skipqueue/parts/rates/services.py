"""The services of rates: pass tokens on, have jobs wait again after a queue's rate was lowered, and delete buckets."""

from ...queue.store import Store
from ...worker.loop import Periodic
from ..keyed.pass_on import TOKENS
from ..keyed.services import BlockSurplus, PassOn
from .admit import prune_rates
from .queues import block_unrated


def pass_tokens_on(store: Store) -> PassOn:
    return PassOn("pass_tokens_on", store, TOKENS, lambda _, admitted: admitted.counts)


def block_unrated_service(store: Store) -> BlockSurplus:
    return BlockSurplus("block_unrated", store, block_unrated)


PRUNE_RATES_SECONDS = 60.0
"""Seconds between two batches."""


class PruneRates(Periodic):
    """Deletes the buckets of rates that have been full for a while: a missing one means the same."""

    name = "prune_rates"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(1.0 if prune_rates(self._store) else PRUNE_RATES_SECONDS)

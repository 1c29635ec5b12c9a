"""The services of rates: pass tokens on, have jobs wait again after a queue's rate was lowered, and delete buckets."""

from ...queue.notify import RATE_PREFIX
from ...queue.store import Store
from ...worker.loop import Periodic
from ..keyed.pass_on import Held, contesting, swapping
from ..keyed.services import BlockSurplus, PassOn
from ..keyed.sql import walking
from .admit import LOCK_RATES, WAITS_FOR_RATE, prune_rates
from .queues import block_unrated

_PIECES = {
    "key": "rate_key",
    "waiting": WAITS_FOR_RATE,
    "found": walking(key="rate_key", waits=WAITS_FOR_RATE),
    "unclaimed": "status = 'queued'",
    "rank": "(-priority) AS rank, run_after, id",
    "order": "rank, run_after, id",
    "in_order": "false",
    "locked": "skipqueue.locked_rates",
    "put_back": "status = 'blocked', gate = 'rate'",
    "admit": "status = 'queued', gate = NULL",
    "admitted": "count(*)",
    "later_key": "NULL::text",
    "worst_first": "rank DESC, run_after DESC, id DESC",
}

# supervisor → as CONTESTED_PERMITS, of rates. Index: rate_waiting and rate_queued, once for each key.
CONTESTED_TOKENS = contesting(_PIECES)

# supervisor, after LOCK_RATES → as PASS_PERMITS_ON, but for the keys of rates. The tokens stay taken.
# Index: rate_queued and rate_waiting, once for each key, and the primary key.
PASS_TOKENS_ON = swapping(_PIECES)

TOKENS = Held(RATE_PREFIX, CONTESTED_TOKENS, LOCK_RATES, PASS_TOKENS_ON)


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

"""The supervisor's services for rate limits: pass tokens on, block jobs after a rate was lowered, delete buckets."""

from functools import partial

from ...queue.store import Store
from ...worker.loop import Periodic
from ..keyed.pass_on import Held, contesting, swapping
from ..keyed.services import BlockSurplus, PassOn
from ..keyed.sql import distinct_keys_scan
from .admit import LOCK_RATES, WAITS_FOR_RATE, prune_rates
from .queues import block_unrated

# Fills the placeholders of the two statements in `keyed.pass_on`, which explains each name.
_RATE_PIECES = {
    "key": "rate_key",
    "waiting": WAITS_FOR_RATE,
    "waiting_key": distinct_keys_scan(key="rate_key", waits=WAITS_FOR_RATE),
    "may_be_put_back": "status = 'queued'",
    "rank": "(-priority) AS rank, run_after, id",
    "order": "rank, run_after, id",
    "in_order": "false",
    "locked": "skipqueue.locked_rates",
    "put_back": "status = 'blocked', gate = 'rate'",
    "admit": "status = 'queued', gate = NULL",
    "admitted": "count(*)",
    "next_gate_key": "NULL::text",
    "worst_first": "rank DESC, run_after DESC, id DESC",
}

# Sent by the supervisor. Returns the columns of CONTESTED_PERMITS, for rate keys. Index: rate_waiting and rate_queued,
# once per key.
CONTESTED_TOKENS = contesting(_RATE_PIECES)

# Sent by the supervisor, after LOCK_RATES. Returns the columns of PASS_PERMITS_ON, for rate keys. The number of taken
# tokens stays. Index: rate_queued and rate_waiting, once for each key, and the primary key.
PASS_TOKENS_ON = swapping(_RATE_PIECES)

TOKENS = Held("rate", CONTESTED_TOKENS, LOCK_RATES, PASS_TOKENS_ON)

pass_tokens_on = partial(PassOn, name="pass_tokens_on", held=TOKENS, admit=lambda _, admitted: admitted.counts)

block_unrated_service = partial(BlockSurplus, name="block_unrated", block=block_unrated)


PRUNE_RATES_SECONDS = 60.0
"""Seconds until the next prune, after a prune that has deleted nothing."""


class PruneRates(Periodic):
    """Deletes buckets that have been full for a while, because a key without a bucket has all of its tokens."""

    name = "prune_rates"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self, now: float) -> None:
        self.run_again_in(1.0 if prune_rates(self._store) else PRUNE_RATES_SECONDS)

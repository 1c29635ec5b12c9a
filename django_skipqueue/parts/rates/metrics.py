"""The metrics of rates. Every count ends at a bound, and no key is a label."""

from collections.abc import Iterator

from ...console.metrics import catalogue
from ...queue.store import Store
from ...values.exposition import Family

MOST_KEYS = 500
"""Keys that are counted."""


def rates(store: Store) -> Iterator[Family]:
    yield Family(catalogue.WAITING_RATES, {(): len(store.blocked_rates(limit=MOST_KEYS))})
    yield Family(catalogue.RATE_LATE, {(): max(0.0, -(store.next_rate() or 0.0))})

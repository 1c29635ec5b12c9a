"""The metrics of batches, from the rows of those that are open."""

from collections.abc import Iterator

from ...console.metrics import catalogue, sql
from ...queue.store import Store
from ...values.exposition import Family


def batches(store: Store) -> Iterator[Family]:
    [(number, seconds)] = store.rows(sql.OPEN_BATCHES)
    yield Family(catalogue.OPEN_BATCHES, {(): number})
    yield Family(catalogue.OLDEST_BATCH, {(): max(seconds, 0.0)})

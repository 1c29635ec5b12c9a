"""The metrics of batches, from the rows of those that are open."""

from collections.abc import Iterator

from ..store import Store
from ..values.exposition import Family
from . import catalogue, sql


def batches(store: Store) -> Iterator[Family]:
    [(number, seconds)] = store.rows(sql.OPEN_BATCHES)
    yield Family(catalogue.OPEN_BATCHES, {(): number})
    yield Family(catalogue.OLDEST_BATCH, {(): max(seconds, 0.0)})

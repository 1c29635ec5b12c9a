"""The metrics of batches, from the rows of those that are open."""

from collections.abc import Iterator

from ...console.metrics import catalogue
from ...queue.store import Store
from ...values.exposition import Family

# batches → the number of open batches, of at most 10,000 of them, and the seconds since the first was made. Index: open
# of batches.
OPEN_BATCHES = """
SELECT
    count(*),
    coalesce(
        date_part(
            'epoch',
            statement_timestamp()
            - (SELECT created_at FROM skipqueue_batch WHERE finished_at IS NULL ORDER BY id LIMIT 1)
        ),
        0
    )
FROM (SELECT FROM skipqueue_batch WHERE finished_at IS NULL LIMIT 10000) AS open
LIMIT 1
"""


def batches(store: Store) -> Iterator[Family]:
    [(number, seconds)] = store.rows(OPEN_BATCHES)
    yield Family(catalogue.OPEN_BATCHES, {(): number})
    yield Family(catalogue.OLDEST_BATCH, {(): max(seconds, 0.0)})

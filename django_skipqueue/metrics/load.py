"""The metrics of the queue's part of the database's load, from the statistics of PostgreSQL."""

from collections.abc import Iterator

from ..doctor.load import Share, statement_seconds, table_load
from ..store import Store
from ..values.exposition import Family, Metric
from . import catalogue


def tables(store: Store) -> Iterator[Family]:
    load = table_load(store)
    yield _family(catalogue.ROWS_WRITTEN, load.rows_written)
    yield _family(catalogue.PAGES_READ, load.pages_read)
    yield _family(catalogue.PAGES_HIT, load.pages_hit)


def statements(store: Store) -> Iterator[Family]:
    """The time of statements: no series without `pg_stat_statements`."""
    yield _family(catalogue.STATEMENT_TIME, statement_seconds(store))


def _family(metric: Metric, share: Share | None) -> Family:
    return Family(metric, {} if share is None else {("queue",): share.queue, ("database",): share.database})

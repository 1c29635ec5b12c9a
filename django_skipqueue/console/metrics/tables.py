"""The metrics of the queue's tables, and of its part of the database's load, from the statistics of PostgreSQL.

Those of the tables are sizes, dead rows, locks, and what is still to be deleted.
"""

from collections.abc import Iterator

from ...models.expressions import table_names
from ...queue.store import Store
from ...values.exposition import Family, Metric
from ..doctor import sql as doctor_sql
from ..doctor.load import Share, statement_seconds, table_load
from . import catalogue, sql


def sizes(store: Store) -> Iterator[Family]:
    """The sizes of the tables, of which one with partitions is the sum of these, and of the indexes."""
    rows = store.rows(doctor_sql.TABLE_SIZES, {"tables": table_names()})
    yield Family(catalogue.TABLE_BYTES, {(name,): total - indexes for name, total, indexes in rows})
    rows = store.rows(sql.INDEX_SIZES, {"tables": table_names()})
    yield Family(catalogue.INDEX_BYTES, {(table, index): size for table, index, size in rows})


def vacuums(store: Store) -> Iterator[Family]:
    rows = store.rows(sql.DEAD_ROWS, {"tables": table_names()})
    yield Family(catalogue.LIVE_ROWS, {(row[0],): row[1] for row in rows})
    yield Family(catalogue.DEAD_ROWS, {(row[0],): row[2] for row in rows})
    yield Family(catalogue.VACUUM_AGE, {(row[0],): row[3] for row in rows if row[3] is not None})


def prune_lag(store: Store) -> Iterator[Family]:
    yield Family(catalogue.PRUNE_LAG, {(): store.prune_lag()})


def locks(store: Store) -> Iterator[Family]:
    waits = {row[0]: row[1] for row in store.rows(doctor_sql.LOCK_WAITS, {"tables": table_names(), "seconds": 0.0})}
    yield Family(catalogue.LOCK_WAITS, {(): len(waits)})
    yield Family(catalogue.LONGEST_LOCK_WAIT, {(): max(waits.values(), default=0.0)})


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

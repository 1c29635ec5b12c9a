"""How much of the database's load is the queue's: by the statistics of its tables, and of its statements.

Every statement about the load is here, as a literal. Each reads views of statistics.
"""

from collections.abc import Iterator
from typing import NamedTuple

from django.utils.translation import gettext

from ...models.expressions import table_names
from ...queue.store import Store
from .finding import Finding, Severity

# database-load, metrics → the rows written, the pages read, and the pages found in memory since the statistics were
# reset: of the queue's tables with their partitions, indexes and TOAST tables, and of the whole database.
TABLE_LOAD = """
SELECT
    COALESCE(sum(stat.n_tup_ins + stat.n_tup_upd + stat.n_tup_del), 0)::bigint AS written,
    COALESCE(sum(
        COALESCE(io.heap_blks_read, 0) + COALESCE(io.idx_blks_read, 0)
        + COALESCE(io.toast_blks_read, 0) + COALESCE(io.tidx_blks_read, 0)
    ), 0)::bigint AS pages_read,
    COALESCE(sum(
        COALESCE(io.heap_blks_hit, 0) + COALESCE(io.idx_blks_hit, 0)
        + COALESCE(io.toast_blks_hit, 0) + COALESCE(io.tidx_blks_hit, 0)
    ), 0)::bigint AS pages_hit,
    min(whole.tup_inserted + whole.tup_updated + whole.tup_deleted) AS all_written,
    min(whole.blks_read) AS all_pages_read,
    min(whole.blks_hit) AS all_pages_hit
FROM
    pg_stat_database AS whole
    CROSS JOIN unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(part.relid, to_regclass(ours.name))
    LEFT JOIN pg_statio_all_tables AS io ON io.relid = stat.relid
WHERE whole.datname = current_database()
LIMIT 1
"""

# database-load, metrics → the schema of the extension `pg_stat_statements`, quoted; no row where it is not installed,
# or where the server has not loaded it.
STATEMENTS_SCHEMA = """
SELECT quote_ident(space.nspname)
FROM pg_extension AS extension JOIN pg_namespace AS space ON space.oid = extension.extnamespace
WHERE extension.extname = 'pg_stat_statements' AND current_setting('pg_stat_statements.max', true) IS NOT NULL
LIMIT 1
"""

# database-load, metrics → the seconds that PostgreSQL has executed statements for, since they are counted: those that
# name the queue's tables, all of this database, and whether the text of any is hidden from this role. `schema`: that of
# the extension.
STATEMENT_TIMES = """
SELECT
    COALESCE(sum(total_exec_time) FILTER (WHERE query LIKE '%%skipqueue\\_%%'), 0) / 1000,
    COALESCE(sum(total_exec_time), 0) / 1000,
    COALESCE(bool_or(query IS NULL OR query = '<insufficient privilege>'), false)
FROM {schema}.pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
LIMIT 1
"""


class Share(NamedTuple):
    """A number since the statistics were reset: of the queue, and of the whole database with it."""

    queue: float
    database: float

    @property
    def percent(self) -> str:
        return f"{100 * self.queue / self.database:.0f}" if self.database else "0"


class TableLoad(NamedTuple):
    rows_written: Share
    """Rows inserted, updated and deleted."""
    pages_read: Share
    """Pages of 8 kB that PostgreSQL did not have in its memory."""
    pages_hit: Share
    """Pages that it had."""


def table_load(store: Store) -> TableLoad:
    """Read two views of statistics, of the queue's tables alone."""
    (row,) = store.rows(TABLE_LOAD, {"tables": table_names()})
    return TableLoad(*(Share(of_queue, of_all) for of_queue, of_all in zip(row[:3], row[3:], strict=True)))


def statement_seconds(store: Store) -> Share | None:
    """The seconds of the statements that name the queue's tables, by `pg_stat_statements`.

    `None` where that is not installed or not loaded, and where this role may not read every statement.
    """
    for (schema,) in store.rows(STATEMENTS_SCHEMA):
        ((of_queue, of_all, is_hidden),) = store.rows(STATEMENT_TIMES.format(schema=schema), {})
        return None if is_hidden else Share(of_queue, of_all)
    return None


def database_load(store: Store) -> Iterator[Finding]:
    tables, statements = table_load(store), statement_seconds(store)
    found = gettext(
        "Of what was done in this database since its statistics were reset, the queue's tables have %(written)s %% of "
        "the rows written, %(read)s %% of the pages read from the disk, and %(hit)s %% of those found in memory."
    ) % {
        "written": tables.rows_written.percent,
        "read": tables.pages_read.percent,
        "hit": tables.pages_hit.percent,
    }
    if statements is None:
        found += " " + gettext("The time of statements is not known: pg_stat_statements is not there, or hides some.")
    else:
        found += " " + gettext("Its statements took %(percent)s %% of the time of all.") % {
            "percent": statements.percent
        }
    yield Finding("database-load", Severity.OK, gettext("The queue's part of the database's load"), found)

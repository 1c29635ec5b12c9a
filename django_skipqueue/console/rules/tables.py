"""Rules about the queue's tables and indexes: dead rows, statistics, sizes, ids, storage parameters, and the load."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from psycopg.sql import Identifier

from ...models.expressions import table_names
from ...queue.store import Store
from ..counts import grouped
from ..durations import span
from .rule import Finding, Rule, Severity, statement

MANY_DEAD_ROWS = 10_000
"""A table may have this many dead rows. If it has more than 50,000 live rows, it may have a fifth as many dead rows."""

LONGEST_VACUUM_AGE = 600.0
"""Seconds within which autovacuum should have vacuumed a table with many dead rows."""

UNANALYZED_BYTES = 8 * 1024**2
"""A table of this size or more should have statistics."""

LARGE_INDEX, HUGE_INDEX = 16 * 1024**2, 256 * 1024**2
"""An index of the first size is never bloated, however few entries it has. From the second on, bloat is a warning."""

ENTRY_BYTES = 400
"""A larger index with more bytes per entry than this is bloated. A fresh index has 40 to 120 bytes per entry."""

TRANSACTION_IDS_LEFT = 500_000_000
"""If fewer of the two thousand million transaction ids are left, PostgreSQL will soon refuse to write."""

STORAGE_STATEMENTS = {
    "skipqueue_job": """\
ALTER TABLE skipqueue_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    fillfactor = 85
);""",
    "skipqueue_worker": """\
ALTER TABLE skipqueue_worker SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);""",
}
"""The statements of the migration that set storage parameters, for the operator to paste."""


# Sent by dead-rows. Returns for each table and partition: its name, the numbers of its live and dead rows, the seconds
# since the last vacuum, and the seconds since the last analyze. Both automatic and manual runs count.
VACUUMS = """
SELECT
    stat.relname,
    stat.n_live_tup,
    stat.n_dead_tup,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_vacuum, stat.last_autovacuum)) AS vacuum_age,
    date_part('epoch', clock_timestamp() - GREATEST(stat.last_analyze, stat.last_autoanalyze)) AS analyze_age
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
ORDER BY stat.n_dead_tup DESC
LIMIT 50
"""


def dead_rows(store: Store) -> Iterator[Finding]:
    for name, live, dead, vacuum_age, analyze_age in store.rows(VACUUMS, {"tables": table_names()}):
        if dead > max(MANY_DEAD_ROWS, live / 5) and (vacuum_age is None or vacuum_age > LONGEST_VACUUM_AGE):
            yield Finding.of(
                Severity.WARNING,
                gettext("Many dead rows in %(table)s"),
                gettext(
                    "%(dead)s rows are dead, and %(live)s are alive. Last vacuum: %(vacuum)s; last analyze: "
                    "%(analyze)s."
                ),
                gettext(
                    "Vacuum the table. If its dead rows stay, something holds an old snapshot: see the other findings."
                ),
                statement("VACUUM (VERBOSE, ANALYZE) {table};", table=Identifier(name)),
                facts={
                    "table": name,
                    "dead": grouped(dead),
                    "live": grouped(live),
                    "vacuum": _ago(vacuum_age),
                    "analyze": _ago(analyze_age),
                },
            )


# Sent by never-analyzed. Returns the tables and partitions above `bytes` that have no statistics for the planner.
NEVER_ANALYZED = """
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
WHERE class.reltuples < 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY class.relname
LIMIT 50
"""


def never_analyzed(store: Store) -> Iterator[Finding]:
    for name, size in store.rows(NEVER_ANALYZED, {"tables": table_names(), "bytes": UNANALYZED_BYTES}):
        yield Finding.of(
            Severity.WARNING,
            gettext("The planner has no statistics of %(table)s"),
            gettext(
                "The table has %(size)s, and was never analyzed: after an upgrade of the server, or because autovacuum "
                "is off. A plan may read all of it."
            ),
            gettext("Analyze the table."),
            statement("ANALYZE {table};", table=Identifier(name)),
            facts={"table": name, "size": filesizeformat(size)},
        )


# Sent by table-sizes. Returns each table, with the bytes of all its files and partitions, and the bytes of its indexes.
TABLE_SIZES = """
SELECT
    queue_table.name,
    sum(pg_total_relation_size(COALESCE(partition.relid, to_regclass(queue_table.name))))::bigint AS total,
    sum(pg_indexes_size(COALESCE(partition.relid, to_regclass(queue_table.name))))::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
WHERE to_regclass(queue_table.name) IS NOT NULL
GROUP BY queue_table.name
ORDER BY total DESC
LIMIT 50
"""


def table_sizes(store: Store) -> Iterator[Finding]:
    sizes = [
        gettext("%(table)s: %(size)s, of which indexes %(indexes)s")
        % {"table": name, "size": filesizeformat(total), "indexes": filesizeformat(indexes)}
        for name, total, indexes in store.rows(TABLE_SIZES, {"tables": table_names()})
    ]
    yield Finding.of(Severity.OK, gettext("Sizes of the tables"), "; ".join(sizes))


# Sent by index-bloat. Returns the valid indexes above `bytes`, with the number of their entries at the last vacuum.
LARGE_INDEXES = """
SELECT class.relname, pg_relation_size(class.oid), class.reltuples::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE index.indisvalid AND class.reltuples >= 0 AND pg_relation_size(class.oid) > %(bytes)s
ORDER BY pg_relation_size(class.oid) DESC
LIMIT 100
"""


def bloated_indexes(store: Store) -> Iterator[Finding]:
    for name, size, entries in store.rows(LARGE_INDEXES, {"tables": table_names(), "bytes": LARGE_INDEX}):
        if size > entries * ENTRY_BYTES + LARGE_INDEX:
            yield Finding.of(
                Severity.WARNING if size >= HUGE_INDEX else Severity.INFO,
                gettext("The index %(index)s is mostly empty"),
                gettext(
                    "It has %(size)s for about %(entries)s entries. After a peak that is normal, and PostgreSQL uses "
                    "the space again; but the pages take room in memory."
                ),
                gettext("Rebuild it. Jobs are enqueued and claimed meanwhile."),
                shlex.join(["python", "manage.py", "skipqueue", "reindex", "--index", name]),
                facts={"index": name, "size": filesizeformat(size), "entries": grouped(entries)},
            )


# Sent by invalid-index. Returns the invalid indexes, except indexes that are being built.
INVALID_INDEXES = """
SELECT class.relname, pg_relation_size(class.oid)
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE
    NOT index.indisvalid
    AND NOT EXISTS (
        SELECT FROM pg_stat_progress_create_index AS progress WHERE progress.relid = index.indrelid
    )
ORDER BY class.relname
LIMIT 50
"""


def invalid_indexes(store: Store) -> Iterator[Finding]:
    for name, size in store.rows(INVALID_INDEXES, {"tables": table_names()}):
        yield Finding.of(
            Severity.WARNING,
            gettext("The index %(index)s is invalid"),
            gettext(
                "A build of it was interrupted. No query uses it, and every write maintains its %(size)s nevertheless."
            ),
            gettext("Remove what was left, and rebuild the index."),
            "python manage.py skipqueue reindex",
            facts={"index": name, "size": filesizeformat(size)},
        )


# Sent by transaction-ids. Returns for each table and partition how old its oldest transaction id and its oldest
# multixact id are, and the ages at which autovacuum freezes such ids. The tables with the oldest ids come first.
TRANSACTION_IDS = """
SELECT
    class.relname,
    age(class.relfrozenxid) AS age,
    mxid_age(class.relminmxid) AS multixact_age,
    current_setting('autovacuum_freeze_max_age')::bigint,
    current_setting('autovacuum_multixact_freeze_max_age')::bigint
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
WHERE class.relkind = 'r'
ORDER BY GREATEST(age(class.relfrozenxid), mxid_age(class.relminmxid)) DESC
LIMIT 50
"""


def transaction_ids(store: Store) -> Iterator[Finding]:
    for name, *ages_and_limits in store.rows(TRANSACTION_IDS, {"tables": table_names()}):
        age, multixact_age, limit, multixact_limit = ages_and_limits
        if age > limit * 1.1 or multixact_age > multixact_limit * 1.1:  # autovacuum is late by more than a tenth
            is_critical = max(age, multixact_age) > 2**31 - TRANSACTION_IDS_LEFT
            yield Finding.of(
                Severity.CRITICAL if is_critical else Severity.WARNING,
                gettext("%(table)s was not frozen in time"),
                gettext(
                    "Its oldest transaction id is %(age)s transactions old (autovacuum freezes at %(limit)s), its "
                    "oldest multixact id %(multixact_age)s (%(multixact_limit)s). At about 2,100 million PostgreSQL "
                    "refuses to write."
                ),
                gettext("First end whatever holds an old snapshot, then vacuum the table."),
                statement("VACUUM (FREEZE, VERBOSE) {table};", table=Identifier(name)),
                facts={
                    "table": name,
                    "age": grouped(age),
                    "limit": grouped(limit),
                    "multixact_age": grouped(multixact_age),
                    "multixact_limit": grouped(multixact_limit),
                },
            )


# Sent by storage-parameters. Returns each table and partition with its storage parameters.
STORAGE_PARAMETERS = """
SELECT class.relname, COALESCE(class.reloptions, '{}')
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_class AS class ON class.oid = COALESCE(partition.relid, to_regclass(queue_table.name))
ORDER BY class.relname
LIMIT 1000
"""


def storage_parameters(store: Store) -> Iterator[Finding]:
    """Find tables that lack the storage parameters of our migration, or whose autovacuum is off."""
    for name, options in store.rows(STORAGE_PARAMETERS, {"tables": table_names()}):
        set_options = dict(option.split("=", 1) for option in options)
        if set_options.get("autovacuum_enabled", "on") in ("off", "false", "no", "0"):
            yield Finding.of(
                Severity.CRITICAL,
                gettext("Autovacuum is off for %(table)s"),
                gettext("autovacuum_enabled is off for this table: nothing removes its dead rows."),
                gettext("Turn it on."),
                statement("ALTER TABLE {table} RESET (autovacuum_enabled);", table=Identifier(name)),
                facts={"table": name},
            )
        missing = [
            option for option in re.findall(r"(\w+) =", STORAGE_STATEMENTS.get(name, "")) if option not in set_options
        ]
        if missing:
            yield Finding.of(
                Severity.WARNING,
                gettext("%(table)s lacks storage parameters"),
                gettext(
                    "The migrations have set %(missing)s, and somebody has reset that. Without it, autovacuum comes "
                    "too late to a table that changes so quickly."
                ),
                gettext("Set them again."),
                STORAGE_STATEMENTS[name],
                facts={"table": name, "missing": ", ".join(missing)},
            )


def _ago(seconds: float | None) -> str:
    return gettext("never") if seconds is None else gettext("%(span)s ago") % {"span": span(seconds)}


# Sent by database-load, metrics. Returns three numbers that PostgreSQL has counted since the statistics were reset: the
# rows written, the pages read, and the pages found in memory. The first three columns are about the queue's tables,
# including their partitions, indexes and TOAST tables; the other three columns are about the whole database.
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
    min(database.tup_inserted + database.tup_updated + database.tup_deleted) AS all_written,
    min(database.blks_read) AS all_pages_read,
    min(database.blks_hit) AS all_pages_hit
FROM
    pg_stat_database AS database
    CROSS JOIN unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = COALESCE(partition.relid, to_regclass(queue_table.name))
    LEFT JOIN pg_statio_all_tables AS io ON io.relid = stat.relid
WHERE database.datname = current_database()
LIMIT 1
"""

# Sent by database-load, metrics. Returns the quoted name of the schema that contains the extension
# `pg_stat_statements`. Returns no row if the extension is not installed, or if the server has not loaded it.
STATEMENTS_SCHEMA = """
SELECT quote_ident(space.nspname)
FROM pg_extension AS extension JOIN pg_namespace AS space ON space.oid = extension.extnamespace
WHERE extension.extname = 'pg_stat_statements' AND current_setting('pg_stat_statements.max', true) IS NOT NULL
LIMIT 1
"""

# Sent by database-load, metrics. Returns for how many seconds PostgreSQL has executed statements since it began to
# count them: first the statements that name the queue's tables, then all statements of this database. The third column
# says whether the text of any statement is hidden from this role. `schema` is the schema of the extension.
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
    """A number for the queue, and for the whole database including the queue, since the statistics were reset."""

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
    """Pages that PostgreSQL had in its memory."""


def table_load(store: Store) -> TableLoad:
    """Read the load of the queue's tables and of the database from PostgreSQL's statistics."""
    (row,) = store.rows(TABLE_LOAD, {"tables": table_names()})
    queue_numbers, database_numbers = row[:3], row[3:]
    return TableLoad(*map(Share, queue_numbers, database_numbers))


def statement_seconds(store: Store) -> Share | None:
    """Return the seconds of the statements that name the queue's tables, and of all statements.

    Return `None` if the extension `pg_stat_statements` is not installed or loaded, or hides statements from this role.
    """
    for (schema,) in store.rows(STATEMENTS_SCHEMA):
        ((queue_seconds, database_seconds, is_hidden),) = store.rows(STATEMENT_TIMES.format(schema=schema), {})
        return None if is_hidden else Share(queue_seconds, database_seconds)
    return None


def database_load(store: Store) -> Iterator[Finding]:
    tables, statements = table_load(store), statement_seconds(store)
    found_text = gettext(
        "Of what was done in this database since its statistics were reset, the queue's tables have %(written)s %% of "
        "the rows written, %(read)s %% of the pages read from the disk, and %(hit)s %% of those found in memory."
    ) % {"written": tables.rows_written.percent, "read": tables.pages_read.percent, "hit": tables.pages_hit.percent}
    if statements is None:
        found_text += " " + gettext(
            "The time of statements is not known: pg_stat_statements is not there, or hides some."
        )
    else:
        found_text += " " + gettext("Its statements took %(percent)s %% of the time of all.") % {
            "percent": statements.percent
        }
    yield Finding.of(Severity.OK, gettext("The queue's part of the database's load"), found_text)


TABLE_RULES = (
    Rule("dead-rows", dead_rows, _("Autovacuum keeps up with dead rows")),
    Rule("never-analyzed", never_analyzed, _("The planner has statistics")),
    Rule("invalid-index", invalid_indexes, _("Every index is valid")),
    Rule("index-bloat", bloated_indexes, _("No index is mostly empty")),
    Rule("transaction-ids", transaction_ids, _("Transaction ids are frozen in time")),
    Rule("storage-parameters", storage_parameters, _("The tables have their storage parameters")),
    Rule("table-sizes", table_sizes, _("Sizes of the tables")),
    Rule("database-load", database_load, _("The queue's part of the database's load")),
)

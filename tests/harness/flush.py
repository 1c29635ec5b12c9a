"""Empty the tables after a test that commits: only tables with rows. Partitions of the archive are dropped.

Django truncates every table, and then writes again what `migrate` writes. TRUNCATE makes a file for a table and for
each of its indexes, so it takes ten times as long as DELETE of the few rows that most tests write: it is left to tables
that have grown, which keeps dead rows few. Tests never change what `migrate` writes.
"""

from typing import Any

from django.core.management.commands import flush
from django.db.backends.base.base import BaseDatabaseWrapper

KEPT = frozenset({"django_content_type", "auth_permission"})
"""Tables whose rows `migrate` writes."""

LARGE_TABLE_BYTES = 128 * 1024
"""A table that is larger is truncated."""

# flush → the tables of these that have pages, of their own or in partitions, and whether they are truncated. What has
# foreign keys to a truncated table is truncated with it, as TRUNCATE wants.
FILLED_TABLES = """
WITH RECURSIVE filled (oid, is_large) AS (
    SELECT oid, pg_table_size(oid) > %s OR relkind = 'p' FROM pg_class
    WHERE relkind IN ('r', 'p') AND relname = ANY (%s) AND pg_table_is_visible(oid)
        AND (pg_relation_size(oid) > 0 OR EXISTS (
            SELECT FROM pg_inherits WHERE inhparent = oid AND pg_relation_size(inhrelid) > 0
        ))
    UNION
    SELECT reference.conrelid, filled.is_large
    FROM pg_constraint AS reference JOIN filled ON filled.oid = reference.confrelid
    WHERE filled.is_large OR pg_relation_size(reference.conrelid) > 0
)
SELECT filled.oid::regclass::text, bool_or(is_large) FROM filled GROUP BY 1 ORDER BY 1
"""

# flush → the months of the archive. `migrate` makes none.
PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('skipqueue_archivedjob')"


def flush_little() -> None:
    """Have Django empty filled tables alone from now on, and write nothing again."""
    setattr(flush, "sql_flush", statements)  # noqa: B010 (it has another signature)
    setattr(flush, "emit_post_migrate_signal", lambda *_: None)  # noqa: B010 (it has another signature)


def statements(style: Any, connection: BaseDatabaseWrapper, **options: Any) -> list[str]:
    """What empties the tables of the models that are not empty.

    The lock is that of TRUNCATE: it waits for the transactions of threads that the test has left.
    """
    tables = [table for table in connection.introspection.django_table_names() if table not in KEPT]
    with connection.cursor() as cursor:
        cursor.execute(PARTITIONS)
        dropped = [f"DROP TABLE {table}" for (table,) in cursor.fetchall()]
        cursor.execute(FILLED_TABLES, [LARGE_TABLE_BYTES, tables])
        filled = dict(cursor.fetchall())
    truncated = [table for table, is_large in filled.items() if is_large]
    deleted = [table for table, is_large in filled.items() if not is_large]
    locked = [f"LOCK TABLE {', '.join(filled)}"] if filled else []
    emptied = [f"TRUNCATE {', '.join(truncated)}"] if truncated else []
    parts = [*locked, *emptied, *(f"DELETE FROM {table}" for table in deleted)]
    return dropped + (["; ".join(parts)] if parts else [])

"""Empties the tables after a test that commits, but only tables with rows, and drops the partitions of the archive.

Django would truncate every table, and then write the rows of `migrate` again, which tests never change. TRUNCATE makes
a new file for the table and for each index. To DELETE the few rows that most tests write takes a tenth of the time. So
only tables that have grown are truncated, which limits the number of dead rows.
"""

from typing import Any

from django.core.management.commands import flush
from django.db.backends.base.base import BaseDatabaseWrapper

KEPT = frozenset({"django_content_type", "auth_permission"})
"""Tables whose rows `migrate` writes. They are not emptied."""

LARGE_TABLE_BYTES = 128 * 1024
"""A larger table is truncated, because it would keep many dead rows."""

# flush → the given tables that have pages, of their own or in partitions, and whether each table is truncated. A table
# with a foreign key to a truncated table is truncated as well, which TRUNCATE demands.
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

# flush → the partitions of the archive, one for each month. `migrate` does not make any.
PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('skipqueue_archivedjob')"


def flush_little() -> None:
    """From now on, let Django empty only tables with rows, and not write the rows of `migrate` again."""
    setattr(flush, "sql_flush", statements)  # noqa: B010 (it has another signature)
    setattr(flush, "emit_post_migrate_signal", lambda *_: None)  # noqa: B010 (it has another signature)


def statements(style: Any, connection: BaseDatabaseWrapper, **options: Any) -> list[str]:
    """The SQL statements that empty the tables of the models.

    LOCK TABLE waits, as TRUNCATE does, for transactions of threads that the test has not ended.
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

"""Empty the tables after a test that commits: only tables with rows. Partitions of the archive are dropped.

Django truncates every table, and then writes again what `migrate` writes. A table costs a file for itself and for each
of its indexes, and most tests fill two or three tables of thirty. Tests never change what `migrate` writes.
"""

from collections.abc import Sequence
from typing import Any

from django.core.management.commands import flush
from django.db import connections
from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.backends.postgresql.operations import DatabaseOperations

KEPT = frozenset({"django_content_type", "auth_permission"})
"""Tables whose rows `migrate` writes."""

# flush → the tables of these that have pages, of their own or in partitions, and those with foreign keys to them, as
# TRUNCATE wants them together.
FILLED_TABLES = """
WITH RECURSIVE filled (oid) AS (
    SELECT oid FROM pg_class
    WHERE relkind IN ('r', 'p') AND relname = ANY (%s) AND pg_table_is_visible(oid)
        AND (pg_relation_size(oid) > 0 OR EXISTS (
            SELECT FROM pg_inherits WHERE inhparent = oid AND pg_relation_size(inhrelid) > 0
        ))
    UNION
    SELECT reference.conrelid FROM pg_constraint AS reference JOIN filled ON filled.oid = reference.confrelid
)
SELECT pg_class.relname FROM filled JOIN pg_class USING (oid) ORDER BY 1
"""

# flush → the months of the archive. `migrate` makes none.
PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('skipqueue_archivedjob')"

truncate_all = DatabaseOperations.sql_flush


def flush_little() -> None:
    """Make Django empty only filled tables after each test."""
    setattr(DatabaseOperations, "sql_flush", truncate_filled)  # noqa: B010 (it has another signature)
    setattr(flush, "emit_post_migrate_signal", lambda *_: None)  # noqa: B010 (it has another signature)


def truncate_filled(operations: BaseDatabaseOperations, style: Any, tables: Sequence[str], **options: Any) -> list[str]:
    """The statements by which Django empties these tables, for those that are not empty."""
    with connections[operations.connection.alias].cursor() as cursor:
        cursor.execute(PARTITIONS)
        dropped = [f"DROP TABLE {table}" for (table,) in cursor.fetchall()]
        cursor.execute(FILLED_TABLES, [[table for table in tables if table not in KEPT]])
        filled = [table for (table,) in cursor.fetchall()]
    return dropped + (truncate_all(operations, style, filled, **options) if filled else [])

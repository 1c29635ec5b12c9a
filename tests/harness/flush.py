"""After a test that commits, empties the tables with rows, drops partitions of the archive, and keeps the connection.

Django would truncate every table, and then write the rows of `migrate` again, which tests never change. TRUNCATE makes
a new file for the table and for each index. To DELETE the few rows that most tests write takes a tenth of the time. So
only tables that have grown are truncated, which limits the number of dead rows.

Django would also close the connection. PostgreSQL would then start a process for each test, which reads the catalogues
again.
"""

from copy import deepcopy
from typing import Any
from weakref import WeakSet

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import TransactionTestCase
from psycopg.pq import TransactionStatus

KEPT = frozenset({"django_content_type", "auth_permission"})
"""Tables whose rows `migrate` writes. They are not emptied."""

LARGE_TABLE_BYTES = 128 * 1024
"""A larger table is truncated, because it would keep many dead rows."""

# Sent by flush. Returns the given tables that have pages, of their own or in partitions, and whether each table is to
# be truncated. A table with a foreign key to a truncated table is truncated too, because TRUNCATE demands it.
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

# Sent by flush. Returns the partitions of the archive, one for each month. `migrate` does not make any.
PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('skipqueue_archivedjob')"


def flush_little() -> None:
    """From now on, let Django empty only tables with rows, omit the rows of `migrate`, and keep connections."""
    settings = {alias: _settings(connections[alias]) for alias in connections}
    with_usual_settings: WeakSet[Any] = WeakSet(each.connection for each in connections.all() if each.connection)

    def note(connection: BaseDatabaseWrapper, **_: object) -> None:
        if _settings(connection) == settings.get(connection.alias):
            with_usual_settings.add(connection.connection)

    def empty(case: TransactionTestCase) -> None:
        for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
            connections[alias].ops.execute_sql_flush(statements(connections[alias]))

    def reload_connections(_: TransactionTestCase) -> bool:
        for connection in connections.all(initialized_only=True):
            if connection.connection not in with_usual_settings or not _reset(connection):
                connection.close()
        return False  # so that Django does not close the connection

    connection_created.connect(note, weak=False)
    setattr(TransactionTestCase, "_fixture_teardown", empty)  # noqa: B010 (no method of the type)
    setattr(TransactionTestCase, "_should_reload_connections", reload_connections)  # noqa: B010 (no method of the type)


def _settings(connection: BaseDatabaseWrapper) -> object:
    return deepcopy(connection.settings_dict), connection.timezone_name


def _reset(connection: BaseDatabaseWrapper) -> bool:
    """Reset the session. Returns False if the session has ended, or is in a transaction."""
    raw = connection.connection
    if raw.closed or raw.info.transaction_status != TransactionStatus.IDLE or not connection.autocommit:
        return False
    try:
        raw.execute("DISCARD ALL")
    except psycopg.Error:  # the test has ended the session
        return False
    connection.init_connection_state()
    return True


def statements(connection: BaseDatabaseWrapper) -> list[str]:
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

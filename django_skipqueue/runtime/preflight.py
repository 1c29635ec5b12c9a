"""Checks that a database can hold the queue, for the system checks and before a worker starts."""

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from ..exceptions import QueueUnavailable
from ..store.database_advice import migrate_command, not_postgresql_message
from ..store.own_connections import dedicated_connection

OLDEST_POSTGRESQL = 15


def check_database(alias: str) -> None:
    """Raise `QueueUnavailable` unless workers can use this database. Its message says what to do."""
    if alias not in connections:
        raise QueueUnavailable(
            f"DATABASES has no alias {alias!r}. Choose one of {', '.join(sorted(connections))} for the queue."
        )
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise QueueUnavailable(not_postgresql_message(alias))
    try:
        with dedicated_connection(alias) as connection:
            connection.ensure_connection()
            version = connection.pg_version  # type: ignore[attr-defined]
            missing = missing_migrations(connection)
    except Error as error:
        reason = " ".join(str(error).split())
        raise QueueUnavailable(f"The database {alias!r} cannot be reached: {reason}") from error
    if version < OLDEST_POSTGRESQL * 10_000:
        raise QueueUnavailable(
            f"The queue needs PostgreSQL {OLDEST_POSTGRESQL} or newer, but {alias!r} is PostgreSQL {version // 10_000}."
        )
    if missing:
        raise QueueUnavailable(
            f"The database {alias!r} lacks the queue's tables or a change to them ({', '.join(missing)}). "
            f"Run: {migrate_command(alias)}"
        )


def missing_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """The names of this app's migrations that are not applied to this database."""
    loader = MigrationLoader(connection)
    ours = {key for key in loader.disk_migrations if key[0] == "django_skipqueue"}
    return sorted(name for app, name in ours - set(loader.applied_migrations or {}))

"""Database connections: the queue's own, and those that Django keeps for each thread of a worker."""

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """A new connection to this database, in autocommit, and outside the project's pool.

    A pooled one may be handed to somebody else between two statements, and a pool does not survive a fork.
    """
    connection = connections.create_connection(alias)
    options = {key: value for key, value in connection.settings_dict.get("OPTIONS", {}).items() if key != "pool"}
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
    return connection


def tidy() -> None:
    """Close this thread's connections that broke, grew too old, or were left in a transaction; keep the others."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:  # the task entered a transaction and never left it: it is rolled back
            # First out of the block: within one, close() keeps the broken connection until the block's own end.
            connection.in_atomic_block = False
            connection.savepoint_ids.clear()
            connection.atomic_blocks.clear()
            connection.needs_rollback = False
            connection.closed_in_transaction = False
            connection.close()
        connection.close_if_unusable_or_obsolete()


def close_all() -> None:
    """Close this thread's connections, at its end."""
    connections.close_all()


def close_before_fork() -> None:
    """Close this thread's connections and the project's pools: two processes must not share a socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()

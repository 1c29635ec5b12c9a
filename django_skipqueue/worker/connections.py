"""The database connections of a thread that runs the project's code: kept between jobs, closed when of no more use."""

from django.db import connections


def tidy() -> None:
    """Close this thread's connections that broke, grew too old, or were left in a transaction; keep the others."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:  # the task entered a transaction and never left it: it is rolled back
            # First out of the block: within one, close() keeps the broken connection until the block's own end.
            connection.in_atomic_block = False
            connection.savepoint_ids.clear()
            connection.atomic_blocks.clear()
            connection.needs_rollback = False
            connection.close()
        connection.close_if_unusable_or_obsolete()


def close_all() -> None:
    """Close this thread's connections, at its end."""
    connections.close_all()

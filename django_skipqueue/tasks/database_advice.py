"""Messages about a database that the queue cannot use."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections

from ..exceptions import QueueUnavailable

FROM_ASYNC_CODE = "In async code, use `await task.adefer(…)`, or `await task.adefer_many(…)` for many jobs."


def postgresql_hint(alias: str) -> str:
    """Say which settings put the queue into a PostgreSQL database."""
    return (
        f"Set DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql', "
        "or SKIPQUEUE['DATABASE'] to the alias of a PostgreSQL database."
    )


@contextmanager
def explained(alias: str) -> Iterator[None]:
    """Add a hint to the error of a `.defer()` if the cause is known. `alias`: that of the database it most likely uses.

    Raises `QueueUnavailable` instead if the database is not PostgreSQL, and the error that names the method for async
    code instead of one that advises a thread.
    """
    try:
        yield
    except (DatabaseError, SynchronousOnlyOperation) as error:
        _explain(error, alias)
        raise


def _explain(error: DatabaseError | SynchronousOnlyOperation, alias: str) -> None:
    if isinstance(error, SynchronousOnlyOperation):
        raise SynchronousOnlyOperation(FROM_ASYNC_CODE) from error
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise QueueUnavailable(f"{not_postgresql_message(alias)} {postgresql_hint(alias)}") from error
    if isinstance(error.__cause__, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        error.add_note(f"Is the queue's table up to date? Run: {migrate_command(alias)}")


def not_postgresql_message(alias: str) -> str:
    """Say that this database is not PostgreSQL."""
    return f"The queue needs PostgreSQL, but the database {alias!r} is {connections[alias].display_name}."


def migrate_command(alias: str) -> str:
    """The command that creates the queue's tables."""
    return f"manage.py migrate django_skipqueue{'' if alias == 'default' else f' --database={alias}'}"

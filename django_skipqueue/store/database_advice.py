"""What to do about a database that is not what the queue needs."""

import psycopg
from django.db import Error, connections

from ..exceptions import QueueUnavailable


def use_postgresql(alias: str) -> str:
    """What to do about a database that is another one."""
    return (
        f"Set DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql', "
        "or SKIPQUEUE['DATABASE'] to the alias of a PostgreSQL database."
    )


def explain(error: Error, alias: str) -> None:
    """Add to an error of a `.defer()` what to do about it, where that is to be seen; raise what says it better."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise QueueUnavailable(no_postgresql(alias)) from error
    if isinstance(error.__cause__, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        error.add_note(f"Is the queue's table up to date? Run: {migrate(alias)}")


def no_postgresql(alias: str) -> str:
    """That this database cannot hold the queue, and what to do."""
    name = connections[alias].display_name
    return f"The queue needs PostgreSQL, but the database {alias!r} is {name}. {use_postgresql(alias)}"


def migrate(alias: str) -> str:
    """The command that makes the queue's tables."""
    return f"manage.py migrate django_skipqueue{'' if alias == 'default' else f' --database={alias}'}"

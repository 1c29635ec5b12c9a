"""How the verbs reach the database: each runs one of the statements of `sql`, on Django's connection of this thread."""

from collections.abc import Mapping
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..events.sinks import Send, send

BATCH = 1_000
"""The batch size of `admit`, `recover` and `prune`, unless told otherwise, and of the verbs of query sets."""


class Statements:
    """What the verbs of every kind share."""

    def __init__(self, alias: str, *, send: Send = send) -> None:
        self.alias = alias
        """The database's name in `DATABASES`."""
        self.send = send
        """Gets the events of the verbs."""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of this thread, or what has taken its place."""
        return connections[self.alias]

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement; the rows that it returns. For the verbs and the gates."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _execute(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

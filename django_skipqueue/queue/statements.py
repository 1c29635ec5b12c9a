"""The base class of the groups of `Store` methods: runs SQL on Django's connection of this thread."""

import json
from collections.abc import Mapping
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..events.sinks import Send, send

BATCH = 1_000
"""The default batch size of `admit`, `recover` and `prune`, and the batch size of the verbs of query sets."""


class Statements:
    """One database, and the way to run a statement there."""

    def __init__(self, alias: str, *, send: Send = send) -> None:
        self.alias = alias
        """The database's name in `DATABASES`."""
        self.send = send
        """Called with each event."""
        self.carrier: dict[str, str] = {}
        """In a relay, the `carrier` and the `carrier_id`: what comes from a broker is written only to jobs that the
        carrier or a relay of it holds."""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of this thread, or the connection that `dedicated_connection` has put in its place."""
        return connections[self.alias]

    def chosen(self, plain: str, carried: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """In a relay the second statement, which asks who holds a job, otherwise the first; with its values."""
        return (carried, values | self.carrier) if self.carrier else (plain, values)

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def expected_rows(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        """The number of rows that the planner expects; `statement` is an EXPLAIN in JSON."""
        ((plan,),) = self.rows(statement, values)
        document = json.loads(plan) if isinstance(plan, str) else plan
        return int(document[0]["Plan"]["Plan Rows"])

    def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

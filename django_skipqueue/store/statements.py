"""How the verbs reach the database: each runs one of the statements of `sql`, on the connection of its queryset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.query import RawQuerySet


class Statements:
    """What the verbs of every kind share. A part of `JobQuerySet`, of which it uses what is declared here."""

    if TYPE_CHECKING:
        model: type[Any]

        @property
        def db(self) -> str: ...

        def raw(
            self, raw_query: Any, params: Any = ..., translations: Any = ..., using: Any = ...
        ) -> RawQuerySet[Any]: ...

    def _connection(self) -> BaseDatabaseWrapper:
        return connections[self.db]

    def _rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._connection().cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

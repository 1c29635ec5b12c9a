"""`Indexes`: the indexes of one database's queue as the catalog has them, and the statements that change them."""

from dataclasses import dataclass

from psycopg import sql as psycopg_sql

from ..models.tables import table_names
from ..store import Store
from . import sql


@dataclass(frozen=True)
class Index:
    schema: str
    name: str
    size: int
    """In bytes."""
    is_left_over: bool
    """Whether it is what an interrupted rebuild has left: invalid, and named …_ccnew or …_ccold."""


class Indexes:
    """The indexes of one database's queue. Its methods need a connection in autocommit that no pooler shares."""

    def __init__(self, store: Store, *, lock_timeout: float) -> None:
        """lock_timeout: seconds that a statement waits for a lock before it fails."""
        self._store = store
        store.rows(sql.LIMIT_LOCK_WAITS, {"lock_timeout": f"{lock_timeout * 1000:.0f}ms"})

    def all(self) -> list[Index]:
        return [Index(*row) for row in self._store.rows(sql.INDEXES, {"tables": table_names()})]

    def rebuild(self, index: Index) -> Index:
        """Rebuild the index, and return it as it is then. If that is interrupted, an index is left over."""
        self._run(sql.REINDEX, index)
        return next(each for each in self.all() if (each.schema, each.name) == (index.schema, index.name))

    def drop(self, index: Index) -> None:
        self._run(sql.DROP_INDEX, index)

    def _run(self, template: str, index: Index) -> None:
        """Run a statement on one index. Its names are quoted as identifiers, which no parameter can be."""
        names = {"schema": psycopg_sql.Identifier(index.schema), "index": psycopg_sql.Identifier(index.name)}
        statement = psycopg_sql.SQL(template).format(**names)
        with self._store.connection.cursor() as cursor:
            cursor.execute(statement)

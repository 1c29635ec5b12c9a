"""`Indexes`: the indexes of one database's queue as the catalog has them, and the statements that change them.

`{schema}` and `{index}` in a statement are identifiers of the catalog, which `psycopg` quotes.
"""

from dataclasses import dataclass

from psycopg import sql as psycopg_sql

from ..models.expressions import table_names
from ..queue.store import Store

# reindex → the indexes of our tables and of their partitions: schema, name, bytes, and whether each is left over from
# an interrupted rebuild.
INDEXES = """
SELECT
    namespace.nspname,
    class.relname,
    pg_relation_size(class.oid),
    NOT index.indisvalid AND class.relname ~ '_cc(new|old)[0-9]*$'
FROM
    unnest(%(tables)s::text[]) AS ours (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(ours.name)) AS part ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(part.relid, to_regclass(ours.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE class.relkind = 'i'
ORDER BY class.relname
LIMIT 10000
"""

# reindex: sets how long a statement of this session waits for a lock, and lets it run for as long as it takes.
LIMIT_LOCK_WAITS = """
SELECT set_config('lock_timeout', %(lock_timeout)s, false), set_config('statement_timeout', '0', false)
"""

# reindex: builds an index anew beside the old one, which is used until the new one is ready.
REINDEX = "REINDEX INDEX CONCURRENTLY {schema}.{index}"

# reindex: removes what an interrupted rebuild has left.
DROP_INDEX = "DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}"


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
        store.rows(LIMIT_LOCK_WAITS, {"lock_timeout": f"{lock_timeout * 1000:.0f}ms"})

    def all(self) -> list[Index]:
        return [Index(*row) for row in self._store.rows(INDEXES, {"tables": table_names()})]

    def rebuild(self, index: Index) -> Index:
        """Rebuild the index, and return it as it is then. If that is interrupted, an index is left over."""
        self._run(REINDEX, index)
        return next(each for each in self.all() if (each.schema, each.name) == (index.schema, index.name))

    def drop(self, index: Index) -> None:
        self._run(DROP_INDEX, index)

    def _run(self, template: str, index: Index) -> None:
        """Run a statement on one index. Its names are quoted as identifiers, which no parameter can be."""
        names = {"schema": psycopg_sql.Identifier(index.schema), "index": psycopg_sql.Identifier(index.name)}
        statement = psycopg_sql.SQL(template).format(**names)
        with self._store.connection.cursor() as cursor:
            cursor.execute(statement)

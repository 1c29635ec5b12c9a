"""Optional indexes for searches by argument. `SKIPQUEUE["SEARCHABLE"]` lists the arguments of each task.

An index has one entry per job of the task, with the value of one argument, whether it was passed by name or by
position. There is no migration for it: `skipqueue index` builds the index, and drops it when the setting no longer
lists the argument.

The entry is an 8-byte hash of the value. If it were the value itself, the INSERT of a job would fail if the value is
longer than a third of a page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from inspect import Parameter
from typing import Any

from psycopg import sql

from ..conf import settings
from ..exceptions import UnknownTask
from ..jobs.registry import registry
from ..queue.store import Store
from ..values.bounds import did_you_mean
from .arguments import may_be_searched, positional_names

INDEX_PREFIX = "skipqueue_search_"

# Sent by skipqueue index. Builds an index while jobs run. `place` is NULL if the argument is never positional.
CREATE_SEARCH_INDEX = """
CREATE INDEX CONCURRENTLY {index} ON skipqueue_job (
    jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
)
WHERE task = {task}
"""

# Sent by search. Returns the ids of jobs of a task whose argument has this value, or another value with the same hash.
# The names and values are literals in the statement, not parameters, so that PostgreSQL sees that the index is for this
# task. Index: the argument's search index.
FIND_BY_INDEX = """
SELECT id
FROM skipqueue_job
WHERE
    task = {task}
    AND jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
    = jsonb_hash_extended({value}::jsonb, 0)
LIMIT {limit}
"""

# Sent by search, skipqueue index, system check. Returns the search indexes of the job table. Each row has the schema,
# the name, whether PostgreSQL uses the index, and whether a session is building it now. Reads the catalog.
SEARCH_INDEXES = """
SELECT
    namespace.nspname,
    class.relname,
    index.indisvalid,
    EXISTS (SELECT FROM pg_stat_progress_create_index AS build WHERE build.index_relid = class.oid)
FROM
    pg_index AS index
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE index.indrelid = to_regclass('skipqueue_job') AND starts_with(class.relname::text, 'skipqueue_search_')
ORDER BY class.relname
LIMIT 1000
"""


@dataclass(frozen=True)
class SearchIndex:
    task: str
    argument: str
    place: int | None
    """The position among positional arguments; `None` if the argument is always passed by name."""

    @property
    def name(self) -> str:
        text = f"{self.task}\0{self.argument}\0{self.place}"
        return INDEX_PREFIX + blake2b(text.encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        return f"{self.task} ({self.argument})"

    def create(self, store: Store) -> None:
        """Build the index on a connection in autocommit mode. An interrupted build leaves an invalid index."""
        statement = self._statement(store, CREATE_SEARCH_INDEX, index=sql.Identifier(self.name))
        store.execute(statement)

    def find(self, store: Store, value: str, *, limit: int) -> list[int]:
        """Return the ids of jobs that may have this value. `value`: JSON text."""
        statement = self._statement(store, FIND_BY_INDEX, value=sql.Literal(value), limit=sql.Literal(limit))
        return [id for (id,) in store.rows(statement)]

    def _statement(self, store: Store, template: str, **parts: sql.Composable) -> str:
        literals = {name: sql.Literal(getattr(self, name)) for name in ("task", "argument", "place")}
        return sql.SQL(template).format(**literals, **parts).as_string(store.connection.connection)


@dataclass(frozen=True)
class ExistingIndex:
    schema: str
    name: str
    is_valid: bool
    is_being_built: bool


def existing(store: Store) -> list[ExistingIndex]:
    return [ExistingIndex(*row) for row in store.rows(SEARCH_INDEXES)]


def wanted() -> list[SearchIndex]:
    """Return the indexes that the setting asks for, without arguments that cannot have an index."""
    return [
        SearchIndex(task, argument, _position(task, argument))
        for task, arguments in settings.searchable.items()
        for argument in arguments
        if not _setting_problem(task, argument)
    ]


def problems() -> Iterator[str]:
    """Yield a sentence for each argument in the setting that cannot have an index."""
    for task, arguments in settings.searchable.items():
        yield from (problem for argument in arguments if (problem := _setting_problem(task, argument)))


def _setting_problem(name: str, argument: str) -> str:
    """Return why the argument of this task cannot have an index; empty if it can."""
    setting = f"SKIPQUEUE['SEARCHABLE'][{name!r}]"
    try:
        task = registry.get(name)
    except UnknownTask:
        return f"{setting}: no task is registered under this name."
    kinds = {parameter.name: parameter.kind for parameter in task.signature.parameters.values()}
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    names = [parameter for parameter, kind in kinds.items() if kind not in variable]
    if argument not in names and Parameter.VAR_KEYWORD not in kinds.values():
        return f"{setting}: the task has no argument {argument!r}.{did_you_mean(argument, names)}"
    if not may_be_searched(argument, "", task):
        return f"{setting}: the values of {argument!r} are masked, and masked values cannot be searched."
    return ""


def _position(task: str, argument: str) -> int | None:
    """Return the argument's position in the task's list of positional parameters; `None` if it is keyword-only."""
    names = positional_names(registry.get(task))
    return names.index(argument) if argument in names else None


def usable(store: Store, argument: str, task: str | None) -> list[SearchIndex]:
    """Return the existing indexes on this argument, of one task or of all tasks."""
    candidates = [index for index in wanted() if index.argument == argument and task in (None, index.task)]
    if not candidates:
        return []
    valid = {index.name for index in existing(store) if index.is_valid}
    return [index for index in candidates if index.name in valid]


def is_scalar(value: Any) -> bool:
    """Return whether a search compares this value as a whole, as an index does, and not parts of it."""
    return not isinstance(value, list | dict)

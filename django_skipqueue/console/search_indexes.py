"""The indexes that a project has for searches: `SKIPQUEUE["SEARCHABLE"]` names the arguments of each task.

An index has one entry for each job of the task, with the value of one argument, by its name or by its place. No
migration makes the index: `skipqueue index` builds it, and drops it when the setting no longer names the argument.

The entry is a hash of the value: 8 bytes, however long the value is. With the value itself, the INSERT of a job would
fail if the value were longer than a third of a page.
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

# skipqueue index: builds an index while jobs run. An argument without a place among `args` has NULL there.
CREATE_SEARCH_INDEX = """
CREATE INDEX CONCURRENTLY {index} ON skipqueue_job (
    jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
)
WHERE task = {task}
"""

# search → the ids of jobs of a task with this value, or one with the same hash. Each name and value is a literal, so
# that PostgreSQL sees that the index has the task. Index: of this argument.
FIND_BY_INDEX = """
SELECT id
FROM skipqueue_job
WHERE
    task = {task}
    AND jsonb_hash_extended(COALESCE(kwargs -> {argument}, args -> {place}), 0)
    = jsonb_hash_extended({value}::jsonb, 0)
LIMIT {limit}
"""

# search, skipqueue index, system check → the indexes of the job table with our prefix: schema, name, whether PostgreSQL
# uses it, and whether a session builds it now. Reads the catalog.
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
    """Among the positional arguments; `None`: it is always passed by name."""

    @property
    def name(self) -> str:
        text = f"{self.task}\0{self.argument}\0{self.place}"
        return INDEX_PREFIX + blake2b(text.encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        return f"{self.task} ({self.argument})"

    def create(self, store: Store) -> None:
        """Build the index, on a connection in autocommit. An interrupted build leaves an invalid index."""
        statement = self._sent(store, CREATE_SEARCH_INDEX, index=sql.Identifier(self.name))
        store.execute(statement)

    def find(self, store: Store, value: str, *, limit: int) -> list[int]:
        """The ids of jobs that may have this value, which is given as JSON."""
        found = self._sent(store, FIND_BY_INDEX, value=sql.Literal(value), limit=sql.Literal(limit))
        return [id for (id,) in store.rows(found)]

    def _sent(self, store: Store, template: str, **parts: sql.Composable) -> str:
        own = {name: sql.Literal(getattr(self, name)) for name in ("task", "argument", "place")}
        return sql.SQL(template).format(**own, **parts).as_string(store.connection.connection)


@dataclass(frozen=True)
class ExistingIndex:
    schema: str
    name: str
    is_valid: bool
    is_being_built: bool


def existing(store: Store) -> list[ExistingIndex]:
    return [ExistingIndex(*row) for row in store.rows(SEARCH_INDEXES)]


def wanted() -> list[SearchIndex]:
    """The indexes that the setting names; none for an argument that cannot have one."""
    return [
        SearchIndex(task, argument, _place(task, argument))
        for task, arguments in settings.searchable.items()
        for argument in arguments
        if not _problem(task, argument)
    ]


def problems() -> Iterator[str]:
    """One sentence for each argument of the setting that no index can find."""
    for task, arguments in settings.searchable.items():
        yield from (problem for argument in arguments if (problem := _problem(task, argument)))


def _problem(name: str, argument: str) -> str:
    setting = f"SKIPQUEUE['SEARCHABLE'][{name!r}]"
    try:
        task = registry.get(name)
    except UnknownTask:
        return f"{setting}: no task is registered under this name."
    kinds = {each.name: each.kind for each in task.signature.parameters.values()}
    names = [each for each, kind in kinds.items() if kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    if argument not in names and Parameter.VAR_KEYWORD not in kinds.values():
        return f"{setting}: the task has no argument {argument!r}.{did_you_mean(argument, names)}"
    if not may_be_searched(argument, "", task):
        return f"{setting}: the values of {argument!r} are masked, and a masked value cannot be searched for."
    return ""


def _place(name: str, argument: str) -> int | None:
    places = positional_names(registry.get(name))
    return places.index(argument) if argument in places else None


def usable(store: Store, argument: str, task: str | None) -> list[SearchIndex]:
    """The indexes of this argument, of one task or of all, that the database has."""
    named = [each for each in wanted() if each.argument == argument and task in (None, each.task)]
    if not named:
        return []
    valid = {each.name for each in existing(store) if each.is_valid}
    return [each for each in named if each.name in valid]


def is_scalar(value: Any) -> bool:
    """Whether the search compares this value as a whole, as an index does. In a list or a dict it looks for a part."""
    return not isinstance(value, list | dict)

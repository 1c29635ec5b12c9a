"""`skipqueue reindex` rebuilds the indexes of the queue's tables; `skipqueue index` builds those of `SEARCHABLE`.

`{schema}` and `{index}` in a statement are identifiers, which `psycopg` quotes.
"""

import time
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, connections
from django.template.defaultfilters import filesizeformat
from django.utils import translation
from psycopg import errors
from psycopg import sql as psycopg_sql

from ...conf import settings
from ...models.expressions import table_names
from ...queue.store import Store
from ...worker.preflight import pools_transactions
from ..durations import duration, span
from ..search_indexes import existing, problems, wanted
from .subcommand import Exit, Subcommand, chosen_database
from .terminal import Console

# Sent by reindex. Returns the indexes of the package's tables and their partitions. Each row has the schema, the name,
# the size in bytes, and whether an interrupted rebuild has left the index.
INDEXES = """
SELECT
    namespace.nspname,
    class.relname,
    pg_relation_size(class.oid),
    NOT index.indisvalid AND class.relname ~ '_cc(new|old)[0-9]*$'
FROM
    unnest(%(tables)s::text[]) AS queue_table (name)
    LEFT JOIN LATERAL pg_partition_tree(to_regclass(queue_table.name)) AS partition ON true
    JOIN pg_index AS index ON index.indrelid = COALESCE(partition.relid, to_regclass(queue_table.name))
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE class.relkind = 'i'
ORDER BY class.relname
LIMIT 10000
"""


# Sent by reindex, index. Limits how long this session's statements wait for locks, but not how long they run.
LIMIT_LOCK_WAITS = """
SELECT set_config('lock_timeout', %(lock_timeout)s, false), set_config('statement_timeout', '0', false)
"""


# Sent by reindex. Builds a new index beside the old one. PostgreSQL uses the old index until the new one is ready.
REINDEX = "REINDEX INDEX CONCURRENTLY {schema}.{index}"


# Sent by reindex, to drop an index that an interrupted rebuild has left; and by index, to drop an index that is invalid
# or no longer in the setting.
DROP_INDEX = "DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}"


@dataclass(frozen=True)
class TableIndex:
    schema: str
    name: str
    size: int
    """In bytes."""
    is_left_over: bool
    """Whether an interrupted rebuild has left this index: it is invalid, and its name ends in _ccnew or _ccold."""


def indexes(store: Store) -> list[TableIndex]:
    return [TableIndex(*row) for row in store.rows(INDEXES, {"tables": table_names()})]


def change_index(store: Store, template: str, *, schema: str, name: str) -> None:
    """Run a statement on one index, on a connection in autocommit mode that is not shared by a pooler.

    The names are quoted as identifiers, because they cannot be parameters.
    """
    names = {"schema": psycopg_sql.Identifier(schema), "index": psycopg_sql.Identifier(name)}
    statement = psycopg_sql.SQL(template).format(**names)
    with store.connection.cursor() as cursor:
        cursor.execute(statement)


class OnIndexes(Subcommand):
    """A subcommand that may be interrupted at any time, because the next run cleans up after an interrupted run."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, but change nothing")
        parser.add_argument(
            "--lock-timeout",
            type=duration,
            default=duration("30s"),
            metavar="DURATION",
            help="how long to wait for a lock or an old transaction; default: 30s",
        )

    def change(self, console: Console, store: Store, **options: Any) -> Exit:
        """Change the indexes. Statements have no time limit, but wait for locks only as long as the option says."""
        raise NotImplementedError

    def execute(self, console: Console, **options: Any) -> Exit:
        alias = chosen_database(options)
        if alias in connections and connections[alias].in_atomic_block:
            raise CommandError(f"skipqueue {self.name} waits for all open transactions, but the caller has one open.")
        return super().execute(console, **options)

    @translation.override(None)
    def run(self, console: Console, **options: Any) -> Exit:
        alias = settings.database
        if pools_transactions(alias):
            raise CommandError(
                f"The connection to the database {alias!r} goes through a pooler in transaction mode, so a lock "
                "timeout would be lost between statements. Connect to the server directly."
            )
        try:
            store, timeout = Store(alias), options["lock_timeout"].total_seconds()
            store.rows(LIMIT_LOCK_WAITS, {"lock_timeout": f"{timeout * 1000:.0f}ms"})
            return self.change(console, store, **options)
        except OperationalError as error:
            if isinstance(error.__cause__, errors.LockNotAvailable):
                raise CommandError(
                    f"Waited {span(options['lock_timeout'])} for a lock or an old transaction. "
                    "`skipqueue doctor` shows who holds it. Run the command again to continue."
                ) from error
            raise


class Reindex(OnIndexes):
    name = "reindex"
    help = "Rebuild the indexes of the queue's tables, one at a time, while jobs run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--index", metavar="NAME", help="rebuild only this index; default: all")
        super().add_arguments(parser)

    def change(self, console: Console, store: Store, **options: Any) -> Exit:
        is_dry_run, only_name = options["dry_run"], options["index"]
        existing_indexes = indexes(store)
        chosen_indexes = [
            index for index in existing_indexes if not index.is_left_over and only_name in (None, index.name)
        ]
        if not chosen_indexes:
            names = ", ".join(index.name for index in existing_indexes)
            raise CommandError(f"No table of the queue has an index {only_name!r}. The indexes: {names}.")
        for index in (index for index in existing_indexes if index.is_left_over):
            if not is_dry_run:
                change_index(store, DROP_INDEX, schema=index.schema, name=index.name)
            result = "would be dropped" if is_dry_run else "dropped"
            console.line(f"{index.name}: left over from an interrupted rebuild, {result}")
        for index in chosen_indexes:
            size = filesizeformat(index.size)
            if is_dry_run:
                console.line(f"{index.name}: {size}, would be rebuilt")
            else:
                start = time.monotonic()
                # If the statement is interrupted, an invalid index remains.
                change_index(store, REINDEX, schema=index.schema, name=index.name)
                duration_text = span(time.monotonic() - start)
                rebuilt = next(
                    index_now
                    for index_now in indexes(store)
                    if (index_now.schema, index_now.name) == (index.schema, index.name)
                )
                console.line(f"{index.name}: {size} → {filesizeformat(rebuilt.size)} in {duration_text}")
        return Exit.DONE


class Index(OnIndexes):
    name = "index"
    help = "Build the indexes for the arguments listed in SEARCHABLE, one at a time, while jobs run"

    def change(self, console: Console, store: Store, **options: Any) -> Exit:
        if setting_problems := list(problems()):
            raise CommandError(" ".join(setting_problems))
        is_not_dry_run = not options["dry_run"]
        wanted_by_name, existing_indexes = {index.name: index for index in wanted()}, existing(store)
        for existing_index in existing_indexes:
            if existing_index.is_being_built:
                console.line(f"{existing_index.name}: another session is building it now")
                wanted_by_name.pop(existing_index.name, None)
            elif existing_index.name not in wanted_by_name or not existing_index.is_valid:
                if is_not_dry_run:
                    change_index(store, DROP_INDEX, schema=existing_index.schema, name=existing_index.name)
                reason = (
                    "left by an interrupted build"
                    if existing_index.name in wanted_by_name
                    else "not listed in SEARCHABLE"
                )
                console.line(f"{existing_index.name}: {reason}, {'dropped' if is_not_dry_run else 'would be dropped'}")
        valid_names = {existing_index.name for existing_index in existing_indexes if existing_index.is_valid}
        for index in wanted_by_name.values():
            if index.name in valid_names:
                console.line(f"{index.name}: {index}, exists")
                continue
            start = time.monotonic()
            if is_not_dry_run:
                index.create(store)
            duration_text = span(time.monotonic() - start)
            console.line(
                f"{index.name}: {index}, {f'built in {duration_text}' if is_not_dry_run else 'would be built'}"
            )
        return Exit.DONE

"""`skipqueue reindex`: build the indexes of the queue's tables anew, one at a time."""

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, connections
from django.template.defaultfilters import filesizeformat
from django.utils import translation
from psycopg import errors

from ...conf import settings
from ...queue.store import Store
from ...worker.preflight import pools_transactions
from ..durations import span
from ..indexes import Index, Indexes
from . import option_types
from .subcommand import Exit, Subcommand, chosen_database
from .terminal import Console


class Reindex(Subcommand):
    """May be interrupted at any time, and run again: it begins with what an interrupted run has left."""

    name = "reindex"
    help = "Build the indexes of the queue's tables anew, one at a time, while jobs run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--index", metavar="NAME", help="only this index; default: all")
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
        parser.add_argument(
            "--lock-timeout",
            type=option_types.duration,
            default=option_types.duration("30s"),
            metavar="DURATION",
            help="how long to wait for a lock or an old transaction; default: 30s",
        )

    def execute(self, console: Console, **options: Any) -> Exit:
        alias = chosen_database(options)
        if alias in connections and connections[alias].in_atomic_block:
            raise CommandError("REINDEX CONCURRENTLY waits for all open transactions, and the caller has one open.")
        return super().execute(console, **options)

    def run(self, console: Console, **options: Any) -> Exit:
        alias = settings.database
        if pools_transactions(alias):
            raise CommandError(
                f"A pooler in transaction mode is between here and the server of the database {alias!r}, so a lock "
                "timeout does not hold from one statement to the next. Connect to the server itself."
            )
        with translation.override(None):
            try:
                return _rebuild(
                    console, Indexes(Store(alias), lock_timeout=options["lock_timeout"].total_seconds()), options
                )
            except OperationalError as error:
                if isinstance(error.__cause__, errors.LockNotAvailable):
                    raise CommandError(
                        f"Waited {span(options['lock_timeout'])} for a lock or an old transaction. "
                        "`skipqueue doctor` shows who has it. Run this again to go on."
                    ) from error
                raise


def _rebuild(console: Console, indexes: Indexes, options: dict[str, Any]) -> Exit:
    found = indexes.all()
    left_over = [index for index in found if index.is_left_over]
    chosen = [index for index in found if not index.is_left_over and options["index"] in (None, index.name)]
    if not chosen:
        names = ", ".join(index.name for index in found)
        raise CommandError(f"No table of the queue has an index {options['index']!r}. The indexes: {names}.")
    for index in left_over:
        if not options["dry_run"]:
            indexes.drop(index)
        console.line(f"{index.name}: left over from an interrupted rebuild, {_done(options, 'dropped')}")
    for index in chosen:
        if options["dry_run"]:
            console.line(f"{index.name}: {_size(index)}, would be rebuilt")
        else:
            start = time.monotonic()
            rebuilt = indexes.rebuild(index)
            console.line(f"{index.name}: {_size(index)} → {_size(rebuilt)} in {span(time.monotonic() - start)}")
    return Exit.DONE


def _done(options: dict[str, Any], verb: str) -> str:
    return f"would be {verb}" if options["dry_run"] else verb


def _size(index: Index) -> str:
    return filesizeformat(index.size)

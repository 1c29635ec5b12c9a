"""`skipqueue prune` and `manage.py prunejobs`: delete finished jobs past their retention, or archive them."""

from collections import Counter
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from ...conf import settings
from ...parts.archive.services import keep_partitions
from ...queue.store import Store
from ...supervisor.prune import Pruner
from .subcommand import Exit, Subcommand
from .terminal import Console


def prune_all(store: Store) -> Counter[str]:
    """Prune until no job is left to prune. Returns the number of jobs, by status.

    In batches, each a transaction of its own, so that it may be stopped at any time.
    """
    pruner = Pruner(store)
    pruned = Counter(pruner.batch())
    while pruner.has_more:
        pruned.update(pruner.batch())
    return pruned


def summary(pruned: Counter[str]) -> str:
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(pruned.items())) or "none were old enough"
    return f"{'Archived' if settings.has_archive else 'Deleted'} {pruned.total():,} jobs: {by_status}."


def keep_all_partitions(store: Store) -> None:
    try:
        while keep_partitions(store):
            pass
    except DatabaseError as error:
        raise CommandError(f"The partitions of the archive could not be made or dropped: {error}") from None


class Prune(Subcommand):
    """What `manage.py prunejobs` does, with its exit codes: a table without old jobs is no problem."""

    name = "prune"
    help = "Delete finished jobs past their retention, or move them to the archive"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print a JSON object")

    def run(self, console: Console, **options: Any) -> Exit:
        store = Store(settings.database)
        pruned = prune_all(store)
        if options["json"]:
            console.json({"jobs": pruned.total(), "archived": settings.has_archive, "statuses": dict(pruned)})
        else:
            console.line(summary(pruned))
        keep_all_partitions(store)
        return Exit.DONE

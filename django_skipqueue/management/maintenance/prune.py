"""`skipqueue prune`: delete finished jobs past their retention, or move them to the archive."""

from typing import Any

from django.core.management.base import CommandParser

from ...conf import settings
from ...store import Store
from ..terminal.console import Console
from ..terminal.pruning import keep_all_partitions, prune_all, summary
from ..terminal.subcommand import Exit, Subcommand


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

"""`skipqueue prune`: delete old jobs, like `manage.py prunejobs`."""

from collections import Counter
from typing import Any

from django.core.management.base import CommandParser

from ...conf import settings
from ...queue.store import Store
from ...supervisor.services import Pruner
from ..parts import consoles
from .subcommand import Exit, Subcommand
from .terminal import Console


def prune_all(store: Store) -> Counter[str]:
    """Prune until no expired job is left. Returns the number of pruned jobs, by status.

    Each batch is a separate transaction, so the command may be stopped at any time.
    """
    pruner = Pruner(store)
    pruned = Counter(pruner.batch())
    while pruner.has_more:
        pruned.update(pruner.batch())
    return pruned


def summary(pruned: Counter[str]) -> str:
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(pruned.items())) or "none were old enough"
    result = next((name.capitalize() for name, applies in what_becomes().items() if applies), "Deleted")
    return f"{result} {pruned.total():,} jobs: {by_status}."


def what_becomes() -> dict[str, bool]:
    """Return what parts (optional features) do with pruned jobs, such as `{"archived": True}`."""
    return {name: applies for part in consoles() if part.pruned for name, applies in part.pruned().items()}


def after_prune(store: Store) -> None:
    """Tell the parts that a command has pruned the jobs of a database."""
    for part in consoles():
        if part.after_prune:
            part.after_prune(store)


class PruneSubcommand(Subcommand):
    name = "prune"
    help = "Delete finished jobs past their retention, or move them to the archive"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print a JSON object")

    def run(self, console: Console, **options: Any) -> Exit:
        store = Store(settings.database)
        pruned = prune_all(store)
        if options["json"]:
            console.json({"jobs": pruned.total(), **what_becomes(), "statuses": dict(pruned)})
        else:
            console.line(summary(pruned))
        after_prune(store)
        return Exit.DONE

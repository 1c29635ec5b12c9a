"""`manage.py prunejobs`: prune finished jobs past their retention, now. Supervisors do the same all the time."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...conf import load_or_default
from ...exceptions import QueueUnavailable
from ...runtime.preflight import check_database
from ...store import Store
from ..terminal.pruning import keep_all_partitions, prune_all, summary


class Command(BaseCommand):
    """Deletes in batches, each a transaction of its own, so that it may be stopped at any time."""

    help = (
        "Delete finished jobs that are older than SKIPQUEUE['RETENTION'] says; "
        "with SKIPQUEUE['ARCHIVE'], move them to the archive."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--database", default=load_or_default().database, help="the alias of the database that holds the queue"
        )

    def handle(self, **options: Any) -> None:
        """Prune until no job is left to prune."""
        try:
            check_database(options["database"])
        except QueueUnavailable as error:
            raise CommandError(str(error)) from None
        store = Store(options["database"])
        self.stdout.write(summary(prune_all(store)))
        keep_all_partitions(store)

"""`manage.py prunejobs`: prune finished jobs past their retention, now. Supervisors do the same all the time."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from ...conf import load_or_default, settings
from ...exceptions import QueueUnavailable
from ...runtime.preflight import check_database
from ...services.archive import keep_partitions
from ...services.prune import Pruner
from ...store import Store


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
        pruner = Pruner(store)
        pruned = Counter(pruner.batch())
        while pruner.has_more:
            pruned.update(pruner.batch())
        by_status = (
            ", ".join(f"{count:,} {status}" for status, count in sorted(pruned.items())) or "none were old enough"
        )
        verb = "Archived" if settings.has_archive else "Deleted"
        self.stdout.write(f"{verb} {pruned.total():,} jobs: {by_status}.")
        self._keep_partitions(store)

    def _keep_partitions(self, store: Store) -> None:
        try:
            while keep_partitions(store):
                pass
        except DatabaseError as error:
            raise CommandError(f"The partitions of the archive could not be made or dropped: {error}") from None

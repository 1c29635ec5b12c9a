"""`manage.py prunejobs`: delete finished jobs past their retention, now. Supervisors do the same all the time."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...conf import load_or_default
from ...exceptions import QueueUnavailable
from ...runtime.preflight import check_database
from ...services.prune import Pruner
from ...store import Store


class Command(BaseCommand):
    """Deletes in batches, each a transaction of its own, so that it may be stopped at any time."""

    help = "Delete finished jobs that are older than SKIPQUEUE['RETENTION'] says."

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
        pruner = Pruner(Store(options["database"]))
        deleted = Counter(pruner.batch())
        while pruner.has_more:
            deleted.update(pruner.batch())
        by_status = (
            ", ".join(f"{count:,} {status}" for status, count in sorted(deleted.items())) or "none were old enough"
        )
        self.stdout.write(f"Deleted {deleted.total():,} jobs: {by_status}.")

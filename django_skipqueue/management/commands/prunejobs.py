"""`manage.py prunejobs`: delete finished jobs whose retention is over, now. Supervisors also do it all the time."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...conf import chosen_or_all, using_database
from ...console.cli.prune import after_prune, prune_all, summary
from ...exceptions import QueueUnavailable
from ...queue.store import Store
from ...worker.preflight import check_database


class Command(BaseCommand):
    """Deletes jobs in batches, each in its own transaction, so that the command may be stopped at any time."""

    help = (
        "Delete finished jobs that are older than SKIPQUEUE['RETENTION'] says; "
        "with SKIPQUEUE['ARCHIVE'], move them to the archive."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database",
            help="the alias of the database that holds the queue; default: all that do",
        )

    def handle(self, **options: Any) -> None:
        """Prune until no job is left to prune. If one database cannot be used, the others are still pruned."""
        aliases = (options["database"],) if options["database"] else chosen_or_all()
        problems = [problem for alias in aliases if (problem := self._prune(alias, with_name=len(aliases) > 1))]
        if problems:
            raise CommandError(" ".join(problems))

    def _prune(self, alias: str, *, with_name: bool) -> str:
        """Prune the jobs of one database. Returns why the database cannot be used, or an empty string if it can."""
        try:
            check_database(alias)
        except QueueUnavailable as error:
            return str(error)
        store = Store(alias)
        with using_database(alias):
            self.stdout.write(f"{f'{alias}: ' if with_name else ''}{summary(prune_all(store))}")
            after_prune(store)
        return ""

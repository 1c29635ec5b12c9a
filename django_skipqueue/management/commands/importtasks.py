"""`manage.py importtasks`: move the waiting tasks of django-tasks-db into the job queue."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    """Takes the options. Everything else is imported in `handle`, because Django 5.2 has no task framework."""

    help = "Move the tasks that wait in the table of django-tasks-db into the job queue."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default="default", help="the alias in TASKS to enqueue on; default: default")
        parser.add_argument("--source", default="default", help="the database with the old table; default: default")
        parser.add_argument("--dry-run", action="store_true", help="say what would be moved, and move nothing")

    def handle(self, **options: Any) -> None:
        from ...integrations.django_tasks.import_tasks import import_tasks

        moved, remaining = import_tasks(options["backend"], options["source"], dry_run=options["dry_run"])
        self.stdout.write(f"{'Would move' if options['dry_run'] else 'Moved'} {moved}.")
        if remaining:
            self.stderr.write(f"Left where they are, since nothing is registered under these names: {remaining}.")

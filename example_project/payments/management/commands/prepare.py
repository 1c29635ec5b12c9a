"""`manage.py prepare` migrates the database, and creates a user who may log in to the admin."""

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection

NAME = PASSWORD = "admin"  # noqa: S105 - an example's


class Command(BaseCommand):
    """Migrate, and create the admin's user."""

    help = "Migrate the database and, under DEBUG, create the user admin with the password admin."

    def handle(self, *args: Any, **options: Any) -> None:
        """Prepare the database, and print its name and version."""
        try:
            connection.ensure_connection()
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {error}") from None
        call_command("migrate", verbosity=0)
        users = get_user_model().objects
        if settings.DEBUG and not users.filter(username=NAME).exists():
            users.create_superuser(NAME, password=PASSWORD)
        version = ".".join(str(number) for number in divmod(connection.pg_version, 10_000))  # type: ignore[attr-defined]
        self.stdout.write(f"Database {connection.settings_dict['NAME']} on PostgreSQL {version} is ready.")

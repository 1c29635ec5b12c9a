"""Operations that only PostgreSQL understands: for indexes, constraints and columns of the job table."""

from typing import Any

from django.db import migrations
from django.db.migrations.operations.base import Operation


class OnPostgreSQL(Operation):
    """Does nothing in the project's other databases, whose SQL has no such expression and whose tables stay empty."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django."""
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """See Django."""
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class AddIndex(OnPostgreSQL, migrations.AddIndex):
    """An index on an expression of PostgreSQL's."""


class AddConstraint(OnPostgreSQL, migrations.AddConstraint):
    """A constraint with a function of PostgreSQL's, or on a table with an index of PostgreSQL's: SQLite copies both."""


class AddField(OnPostgreSQL, migrations.AddField):
    """A column of such a table: SQLite copies the table to add a column that must have a value."""

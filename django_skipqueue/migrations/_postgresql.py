"""Operations that only PostgreSQL understands: indexes, constraints, columns and storage parameters."""

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


class RemoveIndex(OnPostgreSQL, migrations.RemoveIndex):
    """Such an index is removed where it was made."""


class AddConstraint(OnPostgreSQL, migrations.AddConstraint):
    """A constraint with a function of PostgreSQL's, or on a table with an index of PostgreSQL's: SQLite copies both."""


class AddField(OnPostgreSQL, migrations.AddField):
    """A column of such a table: SQLite copies the table to add a column that must have a value."""


def run_on_postgresql(*statements: str) -> Any:
    """Run these where the queue can live; in other databases of the project the tables stay empty, and as they are."""

    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            for statement in statements:
                schema_editor.execute(statement)

    return run

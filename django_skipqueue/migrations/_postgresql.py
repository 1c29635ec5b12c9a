"""Operations of migrations that only PostgreSQL can do: indexes, constraints, a type of column, storage parameters.

A project may have databases of other kinds. The queue's tables stay empty there, and have none of these.
"""

from typing import TYPE_CHECKING, Any

from django.contrib.postgres import operations
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

if TYPE_CHECKING:
    _Field = models.Field[list[int] | None, list[int] | None]
else:
    _Field = models.Field


class BigIntegers(_Field):
    """An array of integers. Django's `ArrayField` needs another app in `INSTALLED_APPS`."""

    def db_type(self, connection: Any) -> str:
        return "bigint[]" if connection.vendor == "postgresql" else "text"


class OnPostgreSQL(Operation):
    """Does nothing in a database of another kind."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class AddIndex(OnPostgreSQL, migrations.AddIndex):
    """An index on an expression of PostgreSQL's."""


class AddField(OnPostgreSQL, migrations.AddField):
    """A column of a table with an index or a constraint of PostgreSQL's: SQLite copies such a table."""


class AddIndexConcurrently(OnPostgreSQL, operations.AddIndexConcurrently):
    """An index that is made without a lock against writes, in a migration that is not atomic."""


class RemoveIndexConcurrently(OnPostgreSQL, operations.RemoveIndexConcurrently):
    pass


class RenameIndex(OnPostgreSQL, migrations.RenameIndex):
    pass


class AddConstraint(OnPostgreSQL, migrations.AddConstraint):
    """A constraint with a function of PostgreSQL's, or on a table with an index of PostgreSQL's: SQLite copies both."""


def run_on_postgresql(*statements: str) -> Any:
    """Return a function for `RunPython` that executes the statements."""

    def run(_apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            for statement in statements:
                schema_editor.execute(statement)

    return run

"""`StoredJSON`: a JSON column that can always be read, whatever somebody has written into the row."""

from typing import Any

from django.db import models

from ..values.codec import UNREADABLE


class StoredJSON(models.JSONField):
    """A value that Python cannot decode, with thousands of levels or digits, is the text `UNREADABLE`.

    So the row can be shown, and deleted. PostgreSQL and migrations see a `JSONField`.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """The value, or `UNREADABLE`."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return UNREADABLE

    def deconstruct(self) -> tuple[str, str, Any, dict[str, Any]]:
        """As the field that it is for the database."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

"""`StoredJSON`: a JSON column that can always be read, even if somebody has written the row by hand."""

from typing import Any

from django.db import models

from ..values.codec import UNREADABLE


class StoredJSON(models.JSONField):
    """A JSON field that returns the string `UNREADABLE` for a value that Python cannot decode.

    Such a value has thousands of levels or digits. With this field, its row can still be shown and deleted. For
    PostgreSQL and migrations this is a `JSONField`.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the decoded value, or `UNREADABLE`."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return UNREADABLE

    def deconstruct(self) -> tuple[str, str, Any, dict[str, Any]]:
        """Describe the field to migrations as a `JSONField`."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

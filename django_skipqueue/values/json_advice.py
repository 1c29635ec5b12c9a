"""What to pass instead of a value that JSON does not have."""

import dataclasses
import datetime
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

ANYTHING = "a str, int, float, bool, None, list or dict"


def instead_of(value: Any) -> str:
    """The end of a sentence that begins with "Pass"; made for the values that people pass by mistake."""
    for kinds, advice in ADVICE:
        if isinstance(value, kinds):
            return advice
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "its primary key"
    if hasattr(value, "values_list"):
        return "its primary keys: list(queryset.values_list('pk', flat=True))"
    if type(value).__name__ == "__proxy__":  # Django's lazy text
        return "str(value)"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dataclasses.asdict(value)"
    if isinstance(value, Iterable):
        return "list(value)"
    return ANYTHING


ADVICE: tuple[tuple[Any, str], ...] = (
    (datetime.timedelta, "value.total_seconds()"),
    ((datetime.date, datetime.time), "value.isoformat()"),
    ((UUID, Decimal, PurePath), "str(value)"),
    ((bytes, bytearray, memoryview), "base64.b64encode(value).decode(), or the key of what is stored elsewhere"),
    ((set, frozenset), "list(value)"),
    (Enum, "its value"),
)

"""Suggests an argument in place of a value that JSON does not have."""

import dataclasses
import datetime
import io
from collections.abc import Callable, Iterable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

ANYTHING = "a str, int, float, bool, None, list or dict"


def instead_of(value: Any) -> str:
    """The end of a sentence that begins with "Pass", for a value that is not JSON."""
    return next((advice for fits, advice in ADVICE if fits(value)), ANYTHING)


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


ANNOTATED = ", or annotate it with its type"
"""Said of the types that arguments and results may have by their annotations."""

ADVICE: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (_is_a(datetime.timedelta), f"value.total_seconds(){ANNOTATED}"),
    (_is_a(datetime.date, datetime.time), f"value.isoformat(){ANNOTATED}"),
    (_is_a(UUID, Decimal), f"str(value){ANNOTATED}"),
    (_is_a(PurePath), "str(value)"),
    (_is_a(bytes, bytearray, memoryview), "base64.b64encode(value).decode(), or the key of what is stored elsewhere"),
    (_is_a(set, frozenset), "list(value)"),
    (_is_a(Enum), f"its value{ANNOTATED}"),
    (lambda value: hasattr(value, "_meta") and hasattr(value, "pk"), f"its primary key{ANNOTATED}"),
    (
        lambda value: hasattr(value, "values_list"),
        "its primary keys: list(queryset.values_list('pk', flat=True))",
    ),
    (lambda value: type(value).__name__ == "__proxy__", "str(value)"),  # Django's lazy text
    (
        lambda value: dataclasses.is_dataclass(value) and not isinstance(value, type),
        f"dataclasses.asdict(value){ANNOTATED}",
    ),
    (_is_a(io.IOBase), "its path, or what it contains"),
    (_is_a(Iterable), "list(value)"),
)

"""Encode values as JSON that `jsonb` accepts and returns equal, and clean text so that PostgreSQL can store it. Pure.

Invariant: PostgreSQL never refuses what `encode` and `clean` return.

A flattened value is one that JSON keeps as a value of a plainer type, such as a member of an enumeration. `encode`
refuses it as an argument, because the task would get another value than the caller passed. Invariant: a str, a dict or
a list of any subclass, such as Django's `SafeString`, is stored, and the task gets an equal value.

The error for a value that JSON does not have suggests another argument.
"""

import dataclasses
import datetime
import io
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, NoReturn
from uuid import UUID

from ..exceptions import FlattenedValue, InvalidArguments

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

_decode = json.JSONDecoder().raw_decode


def decode(text: str) -> Any:
    """Decode a JSON text that PostgreSQL has written.

    Takes a quarter of the time of `json.loads`: most texts are an empty list or dict, and none begins with white space.
    """
    if text == "{}":
        return {}
    return [] if text == "[]" else _decode(text)[0]


UNREADABLE = "(this JSON cannot be read)"
"""Shown in place of JSON that Python cannot decode, because it has thousands of levels or digits."""


def decode_shown(text: str) -> Any:
    """Decode a JSON text that is only shown. A text that Python cannot decode becomes `UNREADABLE`."""
    try:
        return decode(text)
    except (ValueError, RecursionError):
        return UNREADABLE


def encode(name: str, value: Any, is_argument: bool = False) -> str:
    """Encode `value` as JSON text. Raises `InvalidArguments` with the part of `name` that cannot be stored, and why.

    is_argument: raise `FlattenedValue` for a flattened value.
    """
    try:
        if type(value) is int:  # a primary key, the most common argument: takes a sixth of the time
            return str(value)
        found = _check(name, value)
        if found >= HAS_FLATTENED and is_argument:
            refuse_flattened(name, value)
        return _written_out(value) if found & HAS_LARGE_FLOAT else _encode(value)
    except RecursionError:
        raise InvalidArguments(f"{name} is nested too deeply, or contains itself.") from None
    except ValueError as error:  # a whole number with more digits than Python prints
        raise InvalidArguments(f"{name} cannot be stored as JSON: {error}.") from None


def size_of(text: str) -> int:
    """The number of bytes in a JSON text."""
    return len(text) if text.isascii() else len(text.encode())


HAS_LARGE_FLOAT, HAS_FLATTENED = 1, 2
"""Flags of what `_check` finds: a float of 1e16 or more, which `_written_out` must encode, because `jsonb` would turn
1e+23 into another number; and a flattened value."""


MOST_LEVELS = 200
"""Lists and dicts that may be nested in each other. Python reads a thousand, but a worker's stack is not empty."""


def _check(name: str, value: Any, levels: int = MOST_LEVELS) -> int:
    """Raise `InvalidArguments` for a value that JSON does not have or `jsonb` refuses. `name` is the path to `value`.

    Returns the sum of what is found in the value: `HAS_LARGE_FLOAT`, `HAS_FLATTENED`.
    """
    kind, found = type(value), 0
    if kind is str:
        _check_text(name, value)
        return found
    if kind is int or value is None:
        return found
    if isinstance(value, str):
        _check_text(name, value)
    elif isinstance(value, float):
        found = _check_float(name, value)
    elif isinstance(value, list | tuple):
        _check_levels(name, levels)
        for position, item in enumerate(value):
            found |= _check(f"{name}[{position}]", item, levels - 1)
    elif isinstance(value, dict):
        _check_levels(name, levels)
        found = _check_dict(name, value, levels - 1)
    elif not isinstance(value, int):
        article = "an" if kind.__name__[0] in "AEIOaeio" else "a"
        raise InvalidArguments(f"{name} is {article} {kind.__name__}, which is not JSON. Pass {instead_of(value)}.")
    return found if kind in PLAIN_TYPES or not is_flattened(value) else found | HAS_FLATTENED


def _check_float(name: str, value: float) -> int:
    if not math.isfinite(value):
        raise InvalidArguments(f"{name} is {value}, which JSON does not have.")
    return HAS_LARGE_FLOAT if abs(value) >= 1e16 else 0


def _check_levels(name: str, levels: int) -> None:
    if not levels:
        path, _, _ = name.partition("[")
        raise InvalidArguments(f"{path} is nested too deeply, or contains itself: it has over {MOST_LEVELS} levels.")


def _check_dict(name: str, value: dict[Any, Any], levels: int) -> int:
    found = 0
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidArguments(f"{name} has the key {key!r}; JSON would turn it into a str. Use str keys.")
        _check_text(f"the key {key!r} in {name}", key)
        if type(key) is not str and is_flattened(key):
            found |= HAS_FLATTENED
        found |= _check(f"{name}[{key!r}]", item, levels)
    return found


def _written_out(value: Any) -> str:
    """Encode with all digits and a point in large floats, because `jsonb` keeps no exponent."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written_out, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_encode(key)}:{_written_out(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and abs(value) >= 1e16:
        return f"{Decimal(repr(value)):f}.0"
    return _encode(value)


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise InvalidArguments(f"{name} contains a NUL character, which PostgreSQL cannot store.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArguments(f"{name} contains half of a surrogate pair, which is not valid Unicode.") from None


def shorten(line: str, limit: int = 500) -> str:
    """Return the line so that PostgreSQL can store it, cut to `limit` characters."""
    line = _storable(line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def clean(text: str, limit: int) -> str:
    """Return `text` so that PostgreSQL can store it. If it is longer than `limit`, its middle is left out."""
    text = _storable(text)
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit} characters left out …\n"
    kept = max(limit - len(mark), 0)
    return text[: kept // 3] + mark + text[len(text) - (kept - kept // 3) :]


def _storable(text: str) -> str:
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()


PLAIN_TYPES = frozenset((str, int, float, bool, type(None), list, tuple, dict))
"""The types whose values JSON keeps, a tuple as a list. Each value is tested for them first: most pass."""


def is_flattened(value: Any) -> bool:
    """Whether JSON would keep the value as one of a plainer type, and the task would notice."""
    return type(value) not in PLAIN_TYPES and bool(_advice(value))


def refuse_flattened(name: str, value: Any) -> NoReturn:
    """Raise `FlattenedValue` for the first flattened value within this value. `name` is the path to `value`."""
    waiting = [(name, value)]
    while waiting:
        place, item = waiting.pop()
        if is_flattened(item):
            raise FlattenedValue(f"{place} is {_shown(item)}, {_advice(item)}")
        if isinstance(item, dict):
            waiting += [(f"the key {key!r} in {place}", key) for key in item]
            waiting += [(f"{place}[{key!r}]", each) for key, each in item.items()]
        elif isinstance(item, list | tuple):
            waiting += [(f"{place}[{position}]", each) for position, each in enumerate(item)]
    raise FlattenedValue(f"{name} has a value that JSON would change.")  # it was changed in the meantime


def _advice(value: Any) -> str:
    """How the value would arrive, and what to pass instead; empty for a value that JSON keeps."""
    if isinstance(value, Enum):
        return f"which would arrive as {value.value!r}. Pass its .value, or annotate it with its type."
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "which would arrive as a list. Pass list(value), or annotate it with its type."
    if isinstance(value, dict) and hasattr(value, "setlist"):  # Django's QueryDict, which is request.POST
        return "which would lose all but the last value of each key. Pass value.dict(), or dict(value.lists())."
    return ""


def _shown(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else f"a {type(value).__name__}"


ANYTHING = "a str, int, float, bool, None, list or dict"


def instead_of(value: Any) -> str:
    """The end of a sentence that begins with "Pass", for a value that is not JSON."""
    return next((advice for fits, advice in ADVICE if fits(value)), ANYTHING)


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


ANNOTATED = ", or annotate it with its type"
"""A second advice, for types that arguments and results may have if they are annotated."""

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

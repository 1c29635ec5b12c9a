"""Encode values as JSON that `jsonb` accepts and returns unchanged, and clean text so that PostgreSQL can store it.

PostgreSQL accepts every string that `encode` and `clean` return.

A flattened value is a value that JSON would turn into a simpler type: a member of an enumeration would become a string,
for example. `encode` refuses a flattened value as an argument, because the task would get another value than the caller
passed. It accepts a subclass of str, dict or list, such as Django's `SafeString`, because the task gets an equal value.

The error message for a value that JSON cannot represent suggests what to pass instead.
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
    """Decode JSON that PostgreSQL has written.

    This is four times as fast as `json.loads`: most texts are an empty list or dict, and none begins with white space.
    """
    if text == "{}":
        return {}
    return [] if text == "[]" else _decode(text)[0]


UNREADABLE = "(this JSON cannot be read)"
"""Shown instead of JSON that Python cannot decode, because it has thousands of nested levels or of digits."""


def decode_shown(text: str) -> Any:
    """Decode JSON for display only. If Python cannot decode it, return `UNREADABLE` instead of raising."""
    try:
        return decode(text)
    except (ValueError, RecursionError):
        return UNREADABLE


def encode(name: str, value: Any, is_argument: bool = False) -> str:
    """Encode `value` as JSON. Raises `InvalidArguments`, which says what cannot be stored, such as `name[3]`, and why.

    is_argument: whether the value is an argument of a job; then a flattened value raises `FlattenedValue`.
    """
    try:
        if type(value) is int:  # most arguments are primary keys, and this takes a sixth of the time
            return str(value)
        flags = _check(name, value)
        if is_argument and flags & HAS_FLATTENED:
            refuse_flattened(name, value)
        return _encode_large_floats(value) if flags & HAS_LARGE_FLOAT else _encode(value)
    except RecursionError:
        raise InvalidArguments(f"{name} is nested too deeply, or contains itself.") from None
    except ValueError as error:  # an integer with more digits than Python converts to a string
        raise InvalidArguments(f"{name} cannot be stored as JSON: {error}.") from None


def size_of(text: str) -> int:
    """The number of bytes in a JSON text."""
    return len(text) if text.isascii() else len(text.encode())


HAS_LARGE_FLOAT, HAS_FLATTENED = 1, 2
"""The flags that `_check` returns. A large float is 1e16 or more: `_encode_large_floats` must encode it, because
`jsonb` would turn 1e+23 into another number."""


MOST_LEVELS = 200
"""How many lists and dicts may be nested in each other. Python could decode about a thousand levels with an empty
stack, but a worker's stack is not empty."""


def _check(name: str, value: Any, levels: int = MOST_LEVELS) -> int:
    """Raise `InvalidArguments` for a value that JSON or `jsonb` cannot represent. `name` is the path to `value`.

    Returns the flags of the value: `HAS_LARGE_FLOAT` and `HAS_FLATTENED`, combined by `|`.
    """
    value_type, flags = type(value), 0
    if value_type is str:
        _check_text(name, value)
        return flags
    if value_type is int or value is None:
        return flags
    if isinstance(value, str):
        _check_text(name, value)
    elif isinstance(value, float):
        flags = _check_float(name, value)
    elif isinstance(value, list | tuple):
        _check_levels(name, levels)
        for position, item in enumerate(value):
            flags |= _check(f"{name}[{position}]", item, levels - 1)
    elif isinstance(value, dict):
        _check_levels(name, levels)
        flags = _check_dict(name, value, levels - 1)
    elif not isinstance(value, int):
        article = "an" if value_type.__name__[0] in "AEIOaeio" else "a"
        raise InvalidArguments(
            f"{name} is {article} {value_type.__name__}, which is not JSON. Pass {instead_of(value)}."
        )
    return flags if value_type in PLAIN_TYPES or not is_flattened(value) else flags | HAS_FLATTENED


def _check_float(name: str, value: float) -> int:
    if not math.isfinite(value):
        raise InvalidArguments(f"{name} is {value}, which JSON does not have.")
    return HAS_LARGE_FLOAT if abs(value) >= 1e16 else 0


def _check_levels(name: str, levels_left: int) -> None:
    if not levels_left:
        path, _, _ = name.partition("[")
        raise InvalidArguments(f"{path} is nested too deeply, or contains itself: it has over {MOST_LEVELS} levels.")


def _check_dict(name: str, value: dict[Any, Any], levels: int) -> int:
    flags = 0
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidArguments(f"{name} has the key {key!r}; JSON would turn it into a str. Use str keys.")
        _check_text(f"the key {key!r} in {name}", key)
        if type(key) is not str and is_flattened(key):
            flags |= HAS_FLATTENED
        flags |= _check(f"{name}[{key!r}]", item, levels)
    return flags


def _encode_large_floats(value: Any) -> str:
    """Encode a value as JSON. Write large floats with all digits and a point, because `jsonb` keeps no exponent."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_encode_large_floats, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_encode(key)}:{_encode_large_floats(item)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
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
    """Make the line storable by PostgreSQL, and cut it to `limit` characters."""
    line = _storable(line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def clean(text: str, limit: int) -> str:
    """Make `text` storable by PostgreSQL. If it is longer than `limit`, replace its middle by a note."""
    text = _storable(text)
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit} characters left out …\n"
    kept_count = max(limit - len(note), 0)
    kept_at_start = kept_count // 3  # less than at the end, because the end of a traceback says more
    kept_at_end = kept_count - kept_at_start
    return text[:kept_at_start] + note + text[len(text) - kept_at_end :]


def _storable(text: str) -> str:
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()


PLAIN_TYPES = frozenset((str, int, float, bool, type(None), list, tuple, dict))
"""The types that JSON represents, a tuple as a list. A value is compared with them first, because most values have
one."""


def is_flattened(value: Any) -> bool:
    """Whether JSON would turn the value into a simpler type, so that the task would get a different value."""
    return type(value) not in PLAIN_TYPES and bool(_advice(value))


def refuse_flattened(name: str, value: Any) -> NoReturn:
    """Raise `FlattenedValue` for the first flattened value that `value` contains. `name` is the path to `value`."""
    to_visit = [(name, value)]
    while to_visit:
        path, item = to_visit.pop()
        if is_flattened(item):
            raise FlattenedValue(f"{path} is {_described(item)}, {_advice(item)}")
        if isinstance(item, dict):
            to_visit += [(f"the key {key!r} in {path}", key) for key in item]
            to_visit += [(f"{path}[{key!r}]", child) for key, child in item.items()]
        elif isinstance(item, list | tuple):
            to_visit += [(f"{path}[{position}]", child) for position, child in enumerate(item)]
    raise FlattenedValue(f"{name} has a value that JSON would change.")  # another thread has changed it since


def _advice(value: Any) -> str:
    """The end of an error message: how the value would arrive, and what to pass instead. Empty for plain values."""
    if isinstance(value, Enum):
        return f"which would arrive as {value.value!r}. Pass its .value, or annotate it with its type."
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "which would arrive as a list. Pass list(value), or annotate it with its type."
    if isinstance(value, dict) and hasattr(value, "setlist"):  # Django's QueryDict, which is request.POST
        return "which would lose all but the last value of each key. Pass value.dict(), or dict(value.lists())."
    return ""


def _described(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else f"a {type(value).__name__}"


ANYTHING = "a str, int, float, bool, None, list or dict"


def instead_of(value: Any) -> str:
    """What to pass instead of a value that JSON cannot represent: the end of a sentence that begins with "Pass"."""
    return next((advice for is_of_kind, advice in ADVICE if is_of_kind(value)), ANYTHING)


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


ANNOTATED = ", or annotate it with its type"
"""A second piece of advice, for types that the package itself converts if the argument or result is annotated."""

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

"""What may enter a row: JSON that `jsonb` accepts and gives back equal, and text that PostgreSQL can store.

Invariant: what `encode` and `clean` return is never refused by the database.
"""

import json
import math
from typing import Any

from .exceptions import InvalidArguments

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

decode = json.loads


def encode(name: str, value: Any) -> str:
    """`value` as JSON text; raises `InvalidArguments` that says which part of `name` cannot be stored, and why."""
    try:
        _check(name, value)
        return _encode(value)
    except RecursionError:
        raise InvalidArguments(f"{name} is nested too deeply, or contains itself.") from None
    except ValueError as error:  # a whole number with more digits than Python prints
        raise InvalidArguments(f"{name} cannot be stored as JSON: {error}.") from None


def _check(name: str, value: Any) -> None:
    """Refuse whatever JSON would change or `jsonb` would refuse; `name` is the path to `value`."""
    if isinstance(value, str):
        _check_text(name, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArguments(f"{name} is {value}, which JSON does not have.")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _check(f"{name}[{position}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidArguments(f"{name} has the key {key!r}; JSON would turn it into a text. Use text keys.")
            _check_text(f"the key {key!r} in {name}", key)
            _check(f"{name}[{key!r}]", item)
    elif value is not None and not isinstance(value, int):
        raise InvalidArguments(
            f"{name} is a {type(value).__name__}, which is not JSON. Pass a text, number, boolean, None, list or dict: "
            "for a model instance its primary key, for a date its isoformat()."
        )


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise InvalidArguments(f"{name} contains a NUL character, which PostgreSQL cannot store.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArguments(f"{name} contains half of a surrogate pair, which is not valid Unicode.") from None


def clean(text: str, limit: int) -> str:
    """`text` as PostgreSQL can store it, in at most `limit` characters: a long one keeps its beginning and its end."""
    text = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit} characters left out …\n"
    kept = max(limit - len(mark), 0)
    return text[: kept // 3] + mark + text[len(text) - (kept - kept // 3) :]

"""Makes an instance of a dataclass again from its fields, as decoding does, and compares the two.

Invariant: the instance itself is not changed, whatever its `__post_init__` does with lists and dicts.
"""

import copy
import dataclasses
from typing import Any

from .codec import shown

MISSING = object()
"""In place of a field that is not set."""


def may_differ(kind: Any) -> bool:
    """Whether making an instance does more than to set its fields, all of which are arguments. Asked once for a class.

    The fields of Python's own dict are those, and each `ClassVar` and `InitVar`.
    """
    params = vars(kind).get("__dataclass_params__")  # none of its own: a subclass without the decorator
    arguments = [field for field in dataclasses.fields(kind) if field.init]
    return (
        not (params and params.init)
        or hasattr(kind, "__post_init__")
        or len(kind.__dataclass_fields__) > len(arguments)
    )


def difference(value: Any) -> str:
    """Why the instance made again would be another one; empty if it would be the same."""
    fields = dataclasses.fields(value)
    try:
        again = type(value)(**{each.name: _copied(getattr(value, each.name)) for each in fields if each.init})
    except Exception as error:  # code of the project; and an `InitVar` is no field, so its value is missing here
        return f"it cannot be made again from its fields ({error})"
    found = _differing(value, again)
    return found and f"made again from its fields, its {found} is {shown(getattr(again, found, None))}"


def _differing(value: Any, other: Any) -> str:
    """The first field in which two instances of a dataclass differ; empty if there is none.

    One with `init=False` and `compare=False` may differ: a cache, for example.
    """
    for field in dataclasses.fields(value):
        before, after = getattr(value, field.name, MISSING), getattr(other, field.name, MISSING)
        if (field.init or field.compare) and not _is_same(before, after):
            return field.name
    return ""


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()}
    params = getattr(value, "__dataclass_params__", None)
    return value if params is None or params.frozen else copy.copy(value)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal; of dataclasses without a comparison, whether their fields are."""
    if value is other:
        return True
    if type(value) is type(other):
        if isinstance(value, list | tuple):
            return len(value) == len(other) and all(map(_is_same, value, other))
        if isinstance(value, dict):
            return value.keys() == other.keys() and all(_is_same(item, other[key]) for key, item in value.items())
        if dataclasses.is_dataclass(value):
            return not _differing(value, other)
    try:
        return bool(value == other)
    except Exception:  # a comparison of the project's
        return False

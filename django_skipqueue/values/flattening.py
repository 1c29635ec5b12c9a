"""Finds values that JSON keeps as values of a plainer type: a task would get another value than was passed. Pure.

Invariant: a text is stored whatever class of `str` it has, such as Django's `SafeString`, and so is a dict or a list
whatever its class: the task gets an equal one.
"""

from enum import Enum
from typing import Any, NoReturn

from ..exceptions import FlattenedValue

PLAIN = frozenset((str, int, float, bool, type(None), list, tuple, dict))
"""The types whose values JSON keeps, a tuple as a list: asked of each value, so that most are asked nothing else."""


def is_flattened(value: Any) -> bool:
    """Whether JSON keeps less of the value than a task would miss."""
    return type(value) not in PLAIN and bool(_advice(value))


def refuse_flattened(name: str, value: Any) -> NoReturn:
    """Raise `FlattenedValue` for the first such value within this one. `name` is the path to it."""
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
    """How the value would arrive, and what to pass; empty for one that JSON keeps."""
    if isinstance(value, Enum):
        return f"which would arrive as {value.value!r}. Pass its .value, or annotate it with its type."
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "which would arrive as a list. Pass list(value), or annotate it with its type."
    if isinstance(value, dict) and hasattr(value, "setlist"):  # Django's QueryDict, which is request.POST
        return "which would lose all but the last value of each key. Pass value.dict(), or dict(value.lists())."
    return ""


def _shown(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else f"a {type(value).__name__}"

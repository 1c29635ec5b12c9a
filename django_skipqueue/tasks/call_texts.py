"""The arguments of a call, and their JSON texts.

Invariant: a task gets values that are equal to those that were passed, or to what its annotations declare.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..exceptions import InvalidArguments
from ..values.codec import encode

if TYPE_CHECKING:
    from .task import Task

ARGUMENTS = repeat(True)
"""`is_argument` of `encode`, once for each."""


def parts_of(call: Mapping[str, Any] | Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """One item of `defer_many` as positional and keyword arguments."""
    if isinstance(call, list | tuple):
        return call, {}
    if isinstance(call, Mapping):
        return (), call
    raise InvalidArguments(f"give task.s(…), a dict of keyword arguments, or a tuple of positional ones, not {call!r}.")


def texts_of(
    names: Sequence[str], keys: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """The arguments as a JSON list, and those by keyword as a JSON object. Raises `InvalidArguments`.

    names: of the positional arguments. keys: the keywords as JSON keys.
    """
    values = ",".join(map(encode, names, args, ARGUMENTS))
    pairs = ",".join(map(str.__add__, keys, map(encode, kwargs, kwargs.values(), ARGUMENTS))) if kwargs else ""
    return f"[{values}]", f"{{{pairs}}}"


def declared_values(
    task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with the values of members of enumerations where an annotation such as `str` asks for those."""
    from ..arguments.call_types import CallTypes  # loads Django's models: tasks are made while apps are loading

    return CallTypes.of_values(task.__wrapped__, task.signature).encode(args, kwargs)

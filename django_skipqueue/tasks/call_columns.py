"""The columns of a job that depend on the arguments of its call: its unique key, and the keys of limit and rate.

Invariant: a call of a task without keys costs nothing here.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..columns import check_key
from ..exceptions import InvalidArguments, InvalidOption
from .unique import hashed

if TYPE_CHECKING:
    from .task import Task


def call_columns(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `EncodedCall` beside the arguments, which fit the signature.

    Raises `InvalidOption` for a value that cannot be used.
    """
    options = task.options
    if options.is_plain:  # as of nearly all: the rest takes as long as encoding a call
        return {}
    unique, limit, rate = options.unique, options.limit, options.rate
    raw = arguments_by_name(task.signature, args, kwargs) if unique or limit or rate else {}
    given = {name: task.encoded_argument(name, value) for name, value in raw.items()}
    unique_key = unique_key_of(task, given, args, kwargs)
    columns: dict[str, Any] = {"unique_key": unique_key}
    if rate:
        columns |= rate.columns(task.name, keyed(task, given, rate.names))
    if limit:
        columns |= limit.columns(task.name, keyed(task, given, limit.names))
    if options.on_conflict == "rerun" and unique_key is not None:
        columns |= one_at_a_time(unique_key)
    return columns


def arguments_by_name(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the defaults, in the order of the parameters.

    Raises `InvalidArguments` if they do not fit. `*rest` is a tuple under its name. What is in `**options` stands
    beside the others, under its own names.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{error}.") from None
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= dict(sorted(given.pop(parameter.name).items()))
    return given


def unique_key_of(
    task: "Task[Any, Any]", given: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The unique key of a call, by the options of the task. `given`: the arguments by name, as they are stored.

    Raises `InvalidOption` for what the function of a key returns.
    """
    unique_key = task.options.unique_key
    if task.options.unique is not None:
        return task.options.unique.key(task.name, given, shown=task.redacted((), given).kwargs)
    if callable(unique_key):
        unique_key = unique_key(*args, **kwargs)
        if not isinstance(unique_key, str):
            raise InvalidOption(f"unique_key's function must return a str, not {unique_key!r}.")
        check_key("unique_key", unique_key)
    return unique_key


def one_at_a_time(unique_key: str) -> dict[str, Any]:
    """The columns of a job with `on_conflict="rerun"`: the jobs of its unique key are a sequence."""
    return {"limit_key": f"rerun:{unique_key}", "limit_kind": "sequence", "capacity": 1}


def keyed(task: "Task[Any, Any]", given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The named arguments, with the hash of each that has a secret in it: a key is stored as text, and shown."""
    named = {name: given[name] for name in names if name in given}
    shown = task.redacted((), named).kwargs if named else {}
    return {name: value if shown[name] == value else hashed(name, value) for name, value in named.items()}

"""The arguments of a call and their JSON texts, and the columns of a job that depend on the arguments.

Invariant: a task gets values that are equal to those that were passed, or to what its annotations declare.

The columns are its unique key, and the keys of limit and rate. Invariant: a call of a task without keys costs nothing
there, and a call with keys reads only the arguments that are part of a key.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..conf import load
from ..exceptions import InvalidArguments, InvalidOption
from ..parts.unique.options import hashed
from ..values.codec import encode
from ..values.columns import check_key
from ..values.redaction import has_secret

if TYPE_CHECKING:
    from .task import Task

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
    from .arguments.call_types import CallTypes  # loads Django's models: tasks are made while apps are loading

    return CallTypes.of_values(task.__wrapped__, task.signature).encode(args, kwargs)


Place = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Takes one argument from the positional arguments and the keyword arguments of a call."""


def call_columns(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `EncodedCall` beside the arguments, which fit the signature.

    Raises `InvalidOption` for a value that cannot be used.
    """
    options = task.options
    if options.is_plain:  # as of nearly all: the rest takes as long as encoding a call
        return {}
    unique, limit, rate = options.unique, options.limit, options.rate
    places = task.places(len(args), tuple(kwargs)) if unique or limit or rate else {}
    redact = (*load().redact, *task.redact)  # `settings.redact` takes ten times as long
    unique_key = None
    if unique is not None:
        names = unique.names or tuple(places)
        given = {name: task.encoded_argument(name, places[name](args, kwargs)) for name in names if name in places}
        unique_key = unique.key(task.name, given, redact=redact)
    elif callable(options.unique_key):
        unique_key = checked_key(options.unique_key(*args, **kwargs))
    else:
        unique_key = options.unique_key
    columns: dict[str, Any] = {"unique_key": unique_key}
    if rate is not None:
        columns |= rate.columns(task.name, named_arguments(task, rate.names, places, args, kwargs, redact))
    if limit is not None:
        columns |= limit.columns(task.name, named_arguments(task, limit.names, places, args, kwargs, redact))
    if options.on_conflict == "rerun" and unique_key is not None:
        columns |= one_at_a_time(unique_key)
    return columns


def places_of(signature: inspect.Signature, count: int, keywords: Sequence[str]) -> dict[str, Place]:
    """Where each argument is in a call with this number of positional arguments and these keywords, by name.

    In the order of the parameters, and with the defaults. `*rest` is a tuple under its name. What is in `**options`
    stands beside the others, under its own names. Raises `InvalidArguments` if such a call does not fit.
    """
    try:
        bound = signature.bind(*range(count), **{keyword: keyword for keyword in keywords}).arguments
    except TypeError as error:
        raise InvalidArguments(f"{error}.") from None
    places: dict[str, Place] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            places[name] = _rest(count - len(bound.get(name, ())))
        elif parameter.kind is parameter.VAR_KEYWORD:
            places |= {keyword: _keyword(keyword) for keyword in sorted(bound.get(name, ()))}
        elif name not in bound:
            places[name] = _default(parameter.default)
        else:
            at = bound[name]
            places[name] = _positional(at) if isinstance(at, int) else _keyword(at)
    return places


def _positional(position: int) -> Place:
    return lambda args, _: args[position]


def _rest(first: int) -> Place:
    return lambda args, _: tuple(args[first:])


def _keyword(name: str) -> Place:
    return lambda _, kwargs: kwargs[name]


def _default(value: Any) -> Place:
    return lambda *_: value


def arguments_by_name(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the defaults, in the order of the parameters: see `places_of`."""
    return {name: place(args, kwargs) for name, place in task.places(len(args), tuple(kwargs)).items()}


def checked_key(unique_key: Any) -> str:
    """Return what the function of `unique_key` has returned. Raises `InvalidOption` for what no index can hold."""
    if not isinstance(unique_key, str):
        raise InvalidOption(f"unique_key's function must return a str, not {unique_key!r}.")
    check_key("unique_key", unique_key)
    return unique_key


def one_at_a_time(unique_key: str) -> dict[str, Any]:
    """The columns of a job with `on_conflict="rerun"`: the jobs of its unique key are a sequence."""
    return {"limit_key": f"rerun:{unique_key}", "limit_kind": "sequence", "capacity": 1}


def named_arguments(
    task: "Task[Any, Any]",
    names: Sequence[str],
    places: Mapping[str, Place],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    redact: tuple[str, ...],
) -> dict[str, Any]:
    """The arguments of these names that the call has, as its job stores them.

    In place of each that has a secret in it stands its hash: a key is stored as text, and shown.
    """
    named: dict[str, Any] = {}
    for name in names:
        if name in places:
            value = task.encoded_argument(name, places[name](args, kwargs))
            named[name] = hashed(name, value) if has_secret(name, value, redact) else value
    return named

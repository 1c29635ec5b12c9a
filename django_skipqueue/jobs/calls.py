"""The arguments of a call and their JSON texts, and the columns of a job that depend on the arguments.

Invariant: a task gets values that are equal to those that were passed, or to what its annotations declare.

The columns are its unique key, and the keys of limit and rate. Invariant: a call of a task without keys costs nothing
there, and a call with keys reads only the arguments that are part of a key.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.utils.crypto import salted_hmac

from ..conf import load
from ..exceptions import InvalidArguments
from ..values.codec import decode, encode
from ..values.records import NO_COLUMNS
from ..values.redaction import has_secret

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


Place = Callable[[Sequence[Any], Mapping[str, Any]], Any]
"""Takes one argument from the positional arguments and the keyword arguments of a call."""


class Arguments:
    """The arguments of one call, which fit the signature: see `CallArguments`. Reads those that a part asks for."""

    def __init__(self, task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task = task
        self.args = args
        self.kwargs = kwargs
        self._places = task.places(len(args), tuple(kwargs))
        self._redact = (*load().redact, *task.redact)  # `settings.redact` takes ten times as long

    @property
    def task_name(self) -> str:
        """See `CallArguments`."""
        return self._task.name

    def hashed(self, names: Sequence[str]) -> dict[str, Any]:
        """See `CallArguments`."""
        given = {name: self._stored(name) for name in names if name in self._places}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else value
            for name, value in given.items()
        }

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """See `CallArguments`."""
        given = {name: self._stored(name) if name in self._places else None for name in names or self._places}
        return {
            name: _hash(name, value) if has_secret(name, value, self._redact) else canonical(name, value)
            for name, value in given.items()
        }

    def _stored(self, name: str) -> Any:
        return self._task.encoded_argument(name, self._places[name](self.args, self.kwargs))


def call_columns(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of parts that depend on the arguments, which fit the signature.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if not task.options.of_parts:  # nearly all tasks have none: the rest takes as long as encoding a call
        return NO_COLUMNS
    columns: dict[str, Any] = {}
    call = Arguments(task, args, kwargs)
    for part in task.options.of_parts:
        columns |= part.columns(call)
    return columns


SALT = "django_skipqueue.tasks.unique"


def _hash(name: str, value: Any) -> str:
    """What is in a key in place of a value that is, or contains, a secret: a hash that needs the project's key.

    The oldest of its secret keys makes it. So nothing changes when a key moves to `SECRET_KEY_FALLBACKS`, neither for
    jobs that wait nor between processes with the settings of before and after.
    """
    oldest = [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS][-1]
    return f"hmac:{salted_hmac(SALT, canonical(name, value), oldest, algorithm='sha256').hexdigest()}"


def canonical(name: str, value: Any) -> str:
    """The value as JSON. Dictionaries that are equal have one text."""
    text = encode(name, value)
    return json.dumps(decode(text), ensure_ascii=False, sort_keys=True) if text[0] in "{[" else text


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
            places[name] = lambda *_, default=parameter.default: default
        elif isinstance(at := bound[name], int):
            places[name] = _positional(at)
        else:
            places[name] = _keyword(at)
    return places


def _positional(position: int) -> Place:
    return lambda args, _: args[position]


def _rest(first: int) -> Place:
    return lambda args, _: tuple(args[first:])


def _keyword(name: str) -> Place:
    return lambda _, kwargs: kwargs[name]


def arguments_by_name(task: "Task[Any, Any]", args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the defaults, in the order of the parameters: see `places_of`."""
    return {name: place(args, kwargs) for name, place in task.places(len(args), tuple(kwargs)).items()}

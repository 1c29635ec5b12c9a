"""Make the keys of limits and other options from the values of the arguments which the option names."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from ..exceptions import InvalidArguments, InvalidOption
from .codec import encode

KEY_PART_BYTES = 400
"""The most bytes of one part of a key. A longer part is replaced by its hash, because index entries must be short."""


def require_arguments(option: str, names: Sequence[str], signature: Signature) -> None:
    """Raise `InvalidOption` if the option names an argument that a function with this signature does not accept."""
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    known_names = [parameter.name for parameter in signature.parameters.values() if parameter.kind not in VARIABLE]
    for name in names:
        if name not in known_names and not takes_any:
            known = ", ".join(known_names) or "no arguments"
            raise InvalidOption(f"{option} names the argument {name!r}, and the task has {known}.")


VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def names_of(where: str, names: Any) -> tuple[str, ...]:
    """Return one or several argument names as a tuple. Raises `InvalidOption` if `names` is anything else."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, tuple | list) or not all(isinstance(name, str) and name for name in listed):
        raise InvalidOption(f"{where} takes names of arguments, not {names!r}.")
    return tuple(listed)


def checked_name(what: str, name: Any) -> str | None:
    """Return the name of a limit that several tasks share. Raises `InvalidOption` if the name does not fit an index."""
    if name is not None and (
        not isinstance(name, str) or not 0 < len(_encoded(name)) <= KEY_PART_BYTES or "\0" in name
    ):
        raise InvalidOption(f"the name of {what} must be a str of 1 to {KEY_PART_BYTES} bytes, not {name!r}.")
    return name


def _encoded(text: str) -> bytes:
    """Encode the text as UTF-8. Return no bytes for half of a surrogate pair, which cannot be stored."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def key_of(kind: str, name: str, names: tuple[str, ...], arguments: Mapping[str, Any]) -> str:
    """Make the key of a call from its kind, the name of the limit, and the values of the named arguments as JSON.

    Calls with equal JSON values share a key; 42 and "42" make two keys.
    """
    if not names:
        return f"{kind}:{_shortened(name)}"
    values = ", ".join([f"{argument}={_value(argument, arguments)}" for argument in names])
    return f"{kind}:{_shortened(name)} {_shortened(values)}"


def _value(name: str, arguments: Mapping[str, Any]) -> str:
    if name not in arguments:
        raise InvalidArguments(f"the call has no argument {name!r}, which is part of the key of its limit.")
    value = arguments[name]
    text = encode(name, value)
    return text if type(value) is int else json.dumps(json.loads(text), sort_keys=True)


def _shortened(text: str) -> str:
    # UTF-8 has at most 4 bytes for a character.
    if 4 * len(text) <= KEY_PART_BYTES or len(text.encode()) <= KEY_PART_BYTES:
        return text
    return "#" + hashlib.sha256(text.encode()).hexdigest()

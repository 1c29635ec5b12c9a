"""The options by which a task limits its jobs: `limit`, `by`, and the names of `fair_by`. Pure.

Invariant: an object that exists is valid, except for the names of arguments, which `require_arguments` checks.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Literal

from ...exceptions import InvalidArguments, InvalidOption
from ...values.codec import encode
from ...values.queue_settings import LARGEST_LIMIT

LONGEST = 400
"""Bytes of a key's values. Longer ones are replaced by their hash: an index entry must not be long."""

Policy = Literal["halt", "continue"]


@dataclass(frozen=True)
class By:
    """The arguments whose values are the key; made by `by`."""

    names: tuple[str, ...]
    on_failure: Policy = "halt"
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a job of this task with these arguments, by name."""
        key = key_of("sequence", self.name or task, self.names, arguments)
        return {
            "limit_key": key,
            "limit_kind": "halting" if self.on_failure == "halt" else "sequence",
            "capacity": 1,
        }


@dataclass(frozen=True)
class Limit:
    """A number of jobs that may run at once, for each key; made by `limit`."""

    capacity: int
    names: tuple[str, ...]
    name: str | None = None

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a job of this task with these arguments, by name."""
        key = key_of("limit", self.name or task, self.names, arguments)
        return {"limit_key": key, "limit_kind": "concurrency", "capacity": self.capacity}


FEWEST_QUEUED = 2
"""Jobs of a fair key that may be queued at once, at least."""


@dataclass(frozen=True)
class Fair:
    """The arguments whose values are the key among which the workers are shared; made by `fair_by`."""

    names: tuple[str, ...]

    def columns(self, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a job of this task with these arguments, by name."""
        key = key_of("fair", task, self.names, arguments)
        return {"limit_key": key, "limit_kind": "fair", "capacity": FEWEST_QUEUED}


def fair(names: Any) -> Fair:
    """The value of the option `fair_by`, checked. Raises `InvalidOption` for a value that cannot be used."""
    if not (checked := names_of("fair_by", names)):
        raise InvalidOption('fair_by takes the name of at least one argument: fair_by="tenant".')
    return Fair(checked)


def limit(capacity: int, /, *, by: str | tuple[str, ...] = (), name: str | None = None) -> Limit:
    """At most `capacity` jobs run at once: `@job(concurrency=limit(2, by="account_id"))`.

    by: the argument, or the arguments, whose values make the key; by default there is one key for the whole task.
    name: tasks that give the same name share their limit; by default each task has its own.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 1 <= capacity <= LARGEST_LIMIT:
        raise InvalidOption(f"limit takes a whole number of jobs from 1 to {LARGEST_LIMIT:,}, not {capacity!r}.")
    return Limit(capacity, names_of("limit(by=…)", by), checked_name("limit", name))


def by(*names: str, on_failure: Policy = "halt", name: str | None = None) -> By:
    """Strictly one after the other for each key, in the order of their enqueue: `@job(sequence=by("order_id"))`.

    names: the arguments whose values make the key; without one, all jobs of the task are one sequence.
    on_failure: `halt`: after a job that failed, the key waits until somebody retries, discards or deletes that job.
    `continue`: the next job runs.
    name: tasks that give the same name share their sequences; by default each task has its own.

    Raises `InvalidOption` for a value that cannot be used.
    """
    if on_failure not in ("halt", "continue"):
        raise InvalidOption(f"on_failure must be 'halt' or 'continue', not {on_failure!r}.")
    return By(names_of("by(…)", names), on_failure, checked_name("by", name))


def require_arguments(option: str, names: Sequence[str], signature: Signature) -> None:
    """Raise `InvalidOption` if the option names an argument that no call of such a function has."""
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    named = [parameter.name for parameter in signature.parameters.values() if parameter.kind not in VARIABLE]
    for name in names:
        if name not in named and not takes_any:
            known = ", ".join(named) or "no arguments"
            raise InvalidOption(f"{option} names the argument {name!r}, and the task has {known}.")


VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def names_of(where: str, names: Any) -> tuple[str, ...]:
    """The names of arguments, as given. Raises `InvalidOption` for anything else."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, tuple | list) or not all(isinstance(name, str) and name for name in listed):
        raise InvalidOption(f"{where} takes names of arguments, not {names!r}.")
    return tuple(listed)


def checked_name(what: str, name: Any) -> str | None:
    """The name that tasks share. Raises `InvalidOption` for one that no index can hold."""
    if name is not None and (not isinstance(name, str) or not 0 < len(_encoded(name)) <= LONGEST or "\0" in name):
        raise InvalidOption(f"the name of {what} must be a str of 1 to {LONGEST} bytes, not {name!r}.")
    return name


def _encoded(text: str) -> bytes:
    """Empty for a text that cannot be stored: a half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def key_of(kind: str, name: str, names: tuple[str, ...], arguments: Mapping[str, Any]) -> str:
    """The key of a call: its kind, the name of the limit, and the values of the arguments, as JSON.

    Values that are equal in JSON are equal: 42 and "42" are two keys.
    """
    if not names:
        return f"{kind}:{_short(name)}"
    values = ", ".join([f"{each}={_value(each, arguments)}" for each in names])
    return f"{kind}:{_short(name)} {_short(values)}"


def _value(name: str, arguments: Mapping[str, Any]) -> str:
    if name not in arguments:
        raise InvalidArguments(f"the call has no argument {name!r}, which is part of the key of its limit.")
    value = arguments[name]
    text = encode(name, value)
    return text if type(value) is int else json.dumps(json.loads(text), sort_keys=True)


def _short(text: str) -> str:
    """The text, or its hash if it is long."""
    if 4 * len(text) <= LONGEST or len(text.encode()) <= LONGEST:  # UTF-8 has 4 bytes for a character, at most
        return text
    return "#" + hashlib.sha256(text.encode()).hexdigest()

"""The arguments of a job for people: their secrets masked, and with their names if the task is registered."""

from collections.abc import Iterator
from typing import Any

from ..conf import settings
from ..exceptions import UnknownTask
from ..jobs.annotations import POSITIONAL
from ..jobs.registry import registry
from ..jobs.task import Task
from ..values.redaction import Redacted, redact


def positional_names(task: Task[Any, Any]) -> list[str]:
    parameters = task.signature.parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]


def names_in_order(task_name: str, args: list[Any]) -> list[str]:
    """The names of these positional arguments, as far as the registered task has them."""
    task = _known(task_name)
    return list(task.argument_names(args)) if task else []


def named(task_name: str, args: list[Any]) -> Iterator[tuple[str, Any]]:
    """Each positional argument with its name, or with its place where it has no known name."""
    known = names_in_order(task_name, args)
    for place, value in enumerate(args):
        yield known[place] if place < len(known) else f"[{place}]", value


def as_call(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a row. Any value but a list or an object was written by hand, and is one argument."""
    return args if isinstance(args, list) else [args], kwargs if isinstance(kwargs, dict) else {"": kwargs}


def redacted(task_name: str, args: Any, kwargs: Any) -> Redacted:
    """The arguments with their secrets masked. If the task is not registered, positional arguments have no names."""
    task = _known(task_name)
    args, kwargs = as_call(args, kwargs)
    return task.redacted(args, kwargs) if task else redact(args, kwargs, also=settings.redact)


def masked(task_name: str, value: Any) -> Any:
    """A value that is not an argument, with the values of secret names in it masked."""
    return redacted(task_name, [], {"": value}).kwargs[""]


def may_be_searched(name: str, value: Any, task: Task[Any, Any] | None = None) -> bool:
    """Whether no part of this argument is masked. Only such an argument may be searched for by its value."""
    also = (*settings.redact, *(task.redact if task else ()))
    return redact(kwargs={name: value}, also=also).kwargs == {name: value}


def has_secrets(task: Task[Any, Any]) -> bool:
    return bool(task.redact) or any(not may_be_searched(name, "", task) for name in task.signature.parameters)


def _known(task_name: str) -> Task[Any, Any] | None:
    try:
        return registry.get(task_name)
    except UnknownTask:
        return None

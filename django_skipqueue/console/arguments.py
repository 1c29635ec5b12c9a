"""Prepare a job's arguments for display: mask secrets, and add parameter names if the task is registered."""

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
    """Return the parameter names of these positional arguments, as far as they are known."""
    task = _registered_task(task_name)
    return list(task.argument_names(args)) if task else []


def named(task_name: str, args: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each positional argument with its parameter name, or with its position if the name is unknown."""
    names = names_in_order(task_name, args)
    for position, value in enumerate(args):
        yield names[position] if position < len(names) else f"[{position}]", value


def as_call(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return a row's arguments as a list and a dict. Any other value, which another program wrote, is one argument."""
    return args if isinstance(args, list) else [args], kwargs if isinstance(kwargs, dict) else {"": kwargs}


def redacted(task_name: str, args: Any, kwargs: Any) -> Redacted:
    """Mask the secrets in a job's arguments. If the task is not registered, positional arguments have no names."""
    task = _registered_task(task_name)
    args, kwargs = as_call(args, kwargs)
    return task.redacted(args, kwargs) if task else redact(args, kwargs, also=settings.redact)


def masked(task_name: str, value: Any) -> Any:
    """Mask the secrets in a value that is not an argument, such as a result."""
    return redacted(task_name, [], {"": value}).kwargs[""]


def may_be_searched(name: str, value: Any, task: Task[Any, Any] | None = None) -> bool:
    """Return whether operators may search for this argument's value: only if no part of it is masked."""
    secret_names = (*settings.redact, *(task.redact if task else ()))
    return redact(kwargs={name: value}, also=secret_names).kwargs == {name: value}


def has_secrets(task: Task[Any, Any]) -> bool:
    return bool(task.redact) or any(not may_be_searched(name, "", task) for name in task.signature.parameters)


def _registered_task(task_name: str) -> Task[Any, Any] | None:
    try:
        return registry.get(task_name)
    except UnknownTask:
        return None

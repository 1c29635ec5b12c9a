"""The names of positional arguments, as far as this process knows the task they were passed to."""

from inspect import Parameter
from typing import Any

from .. import tasks as registered
from ..exceptions import UnknownTask
from ..tasks import Task

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def names_of(task: Task[Any, Any]) -> list[str]:
    """The parameters that a positional argument can fill, in order."""
    parameters = task.signature.parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]


def named(task_name: str, args: list[Any]) -> list[tuple[str, Any]]:
    """Each positional argument with its name, or with its place where nobody knows the name."""
    try:
        known = names_of(registered.tasks.get(task_name))
    except UnknownTask:
        known = []
    return [(known[place] if place < len(known) else f"[{place}]", value) for place, value in enumerate(args)]

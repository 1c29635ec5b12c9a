"""The tasks of this process, by name.

A task's name in a row can only ever look up this registry; nothing is imported because a row says so.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .exceptions import DuplicateTask, UnknownTask

if TYPE_CHECKING:
    from .tasks import Task


class Registry:
    """The tasks of this process, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.duplicates: dict[str, tuple[Task[Any, Any], Task[Any, Any]]] = {}
        """Names that two different functions were registered under, with both; a system check reports them."""

    def __iter__(self) -> Iterator["Task[Any, Any]"]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def register(self, task: "Task[Any, Any]") -> None:
        """Add a task. The same function again, from a reloaded module, takes its own place."""
        known = self._tasks.get(task.name)
        if known is not None and _source(known) != _source(task):
            self.duplicates[task.name] = (known, task)
        self._tasks[task.name] = task

    def get(self, name: str) -> "Task[Any, Any]":
        """The task of this name; raises `UnknownTask`."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(f"No task is registered as {name!r}.") from None

    def check_unique(self, task: "Task[Any, Any]") -> None:
        """Refuse a task whose name another function has as well: nobody could tell which of them a worker would run."""
        if task.name in self.duplicates:
            raise DuplicateTask(describe_duplicate(*self.duplicates[task.name]))


tasks = Registry()


def describe_duplicate(first: "Task[Any, Any]", second: "Task[Any, Any]") -> str:
    """One sentence that names both functions."""
    return (
        f"Two tasks are registered as {first.name!r}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}. Give one of them another name with @job(name=…)."
    )


def _source(task: "Task[Any, Any]") -> tuple[str, str]:
    return task.__module__, task.__qualname__

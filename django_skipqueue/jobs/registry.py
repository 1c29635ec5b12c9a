"""The tasks of this process, by name.

Invariant: a worker only runs tasks that are registered here. A name in a row never causes an import.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings

from ..exceptions import DuplicateTask, UnknownTask
from ..queue.queues import DECLARED

if TYPE_CHECKING:
    from .task import Task

THREADS = "threads"
"""The name of the runner of `def` tasks."""

EVENT_LOOP = "event_loop"
"""The name of the runner of `async def` tasks."""

RUNNER_NAMES = (THREADS, EVENT_LOOP)
"""All runners. Their classes are in `worker.attempts.pool`."""


class Registry:
    """The tasks of this process, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Task[Any, Any]] = {}
        self.uses_threads_alone = True
        """Whether all tasks are `def` functions."""
        self.has_limits = False
        """Whether jobs of any task may wait for the end of others."""
        self.duplicates: dict[str, tuple[Task[Any, Any], Task[Any, Any]]] = {}
        """Names under which two different functions were registered, with both tasks; a system check reports them."""
        self._late: set[str] = set()
        """Names that were registered after all apps were ready: a worker may not import their modules."""

    def __iter__(self) -> Iterator["Task[Any, Any]"]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def register(self, task: "Task[Any, Any]") -> None:
        """Add a task. The same function from a reloaded module replaces itself.

        Raises `InvalidOption` if one of its options names an argument that it does not take.
        """
        task.options.check_signature(task.signature)
        known = self.by_name.get(task.name)
        if known is not None and _source(known) != _source(task):
            self.duplicates[task.name] = (known, task)
        DECLARED.add(task.options.queue_name)
        if task.options.is_limited:
            self.has_limits = True
        self.by_name[task.name] = task
        self.uses_threads_alone = self.uses_threads_alone and task.runner == THREADS
        if apps.ready and known is None:  # until the apps are ready, every process imports the module, workers as well
            self._late.add(task.name)

    def get(self, name: str) -> "Task[Any, Any]":
        """The task of this name; raises `UnknownTask`."""
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownTask(f"No task is registered as {name!r}.") from None

    def runner_of(self, name: str) -> str:
        """The name of the runner of this task. The runner of `def` tasks also handles unknown tasks."""
        task = self.by_name.get(name)
        return THREADS if task is None else task.runner

    def is_limited(self, name: str) -> bool:
        """Whether jobs of the task of this name may wait for the end of others; False if it is unknown."""
        task = self.by_name.get(name)
        return task is not None and task.options.is_limited

    def is_async(self, name: str) -> bool:
        """Whether the task of this name is an `async def`; False if it is unknown."""
        task = self.by_name.get(name)
        return task is not None and task.is_async

    def require_findable(self, task: "Task[Any, Any]") -> None:
        """Raise `DuplicateTask` if two functions have the task's name: a worker might run either function.

        Under `DEBUG`, warn once about a task whose module this process has imported, but no worker imports at start.
        """
        if task.name in self.duplicates:
            raise DuplicateTask(describe_duplicate(*self.duplicates[task.name]))
        if settings.DEBUG and task.name in self._late:
            self._late.remove(task.name)
            message = f"A worker may not find {task.name}: {where_to_put(task.__module__)}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


registry = Registry()


def where_to_look(name: str) -> str:
    """A hint why a worker does not know the task of this name."""
    module = name.rpartition(".")[0]
    if module.endswith(".jobs"):
        return f"Is the app of {module} in INSTALLED_APPS, and does this worker run the latest code?"
    return f"A worker imports the jobs module of each installed app. If it is in {module}, move it or import it there."


def where_to_put(module: str) -> str:
    """A hint where to put a task whose module workers do not import."""
    configs = [config.name for config in apps.get_app_configs() if f"{module}.".startswith(f"{config.name}.")]
    if not configs:
        return f"{module} is in no installed app. Add its app to INSTALLED_APPS, and put the task into its jobs.py."
    path = max(configs, key=len).replace(".", "/")
    return f"it is in {module}, which nothing imports at start. Move it to {path}/jobs.py, or import it there."


def describe_duplicate(first: "Task[Any, Any]", second: "Task[Any, Any]") -> str:
    """One sentence that names both functions."""
    return (
        f"Two tasks are registered as {first.name!r}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}. Give one of them another name with @job(name=…)."
    )


def _source(task: "Task[Any, Any]") -> tuple[str, str]:
    return task.__module__, task.__qualname__

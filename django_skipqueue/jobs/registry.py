"""The registry of all tasks in this process, by name.

A worker runs only tasks that are registered here. A task name in a job's row never causes an import.
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
"""The name of the runner that runs `def` tasks."""

EVENT_LOOP = "event_loop"
"""The name of the runner that runs `async def` tasks."""

RUNNER_NAMES = (THREADS, EVENT_LOOP)
"""The names of all runners. Their classes are in `worker.attempts.pool`."""


class Registry:
    """The tasks of this process, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Task[Any, Any]] = {}
        self.uses_threads_alone = True
        """Whether all tasks are `def` functions."""
        self.has_limits = False
        """Whether any task has an option, such as a limit, by which a job may have to wait until other jobs end."""
        self.duplicates: dict[str, tuple[Task[Any, Any], Task[Any, Any]]] = {}
        """Names under which two different functions were registered, each with both tasks. A system check reports
        them."""
        self._late: set[str] = set()
        """Names of tasks that were registered after all apps were ready. A worker may not import their modules."""

    def __iter__(self) -> Iterator["Task[Any, Any]"]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def register(self, task: "Task[Any, Any]") -> None:
        """Add a task. If its module is reloaded, the new function replaces the old function.

        Raises `InvalidOption` if an option of the task names an argument that its function does not take.
        """
        task.options.check_signature(task.signature)
        previous = self.by_name.get(task.name)
        if previous is not None and _source(previous) != _source(task):
            self.duplicates[task.name] = (previous, task)
        DECLARED.add(task.options.queue_name)
        if task.options.is_limited:
            self.has_limits = True
        self.by_name[task.name] = task
        self.uses_threads_alone = self.uses_threads_alone and task.runner == THREADS
        if apps.ready and previous is None:  # before the apps are ready, workers import the same modules
            self._late.add(task.name)

    def get(self, name: str) -> "Task[Any, Any]":
        """Return the task with this name. Raises `UnknownTask`."""
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownTask(f"No task is registered as {name!r}.") from None

    def runner_of(self, name: str) -> str:
        """The name of the runner for this task. The runner of `def` tasks also handles jobs of unknown tasks."""
        task = self.by_name.get(name)
        return THREADS if task is None else task.runner

    def is_limited(self, name: str) -> bool:
        """Whether a job of this task may have to wait until other jobs end; False if the task is unknown."""
        task = self.by_name.get(name)
        return task is not None and task.options.is_limited

    def is_async(self, name: str) -> bool:
        """Whether the task with this name is an `async def`; False if the task is unknown."""
        task = self.by_name.get(name)
        return task is not None and task.is_async

    def require_findable(self, task: "Task[Any, Any]") -> None:
        """Raise `DuplicateTask` if two functions have the task's name, because a worker might run the wrong function.

        If `DEBUG` is set, warn once about a task whose module this process has imported, but workers may not import.
        """
        if task.name in self.duplicates:
            raise DuplicateTask(describe_duplicate(*self.duplicates[task.name]))
        if settings.DEBUG and task.name in self._late:
            self._late.remove(task.name)
            message = f"A worker may not find {task.name}: {where_to_put(task.__module__)}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


registry = Registry()


def where_to_look(name: str) -> str:
    """A hint why the task with this name may not be registered in a worker."""
    module = name.rpartition(".")[0]
    if module.endswith(".jobs"):
        return f"Is the app of {module} in INSTALLED_APPS, and does this worker run the latest code?"
    return f"A worker imports the jobs module of each installed app. If it is in {module}, move it or import it there."


def where_to_put(module: str) -> str:
    """A hint to which module to move a task whose module workers do not import."""
    configs = [config.name for config in apps.get_app_configs() if f"{module}.".startswith(f"{config.name}.")]
    if not configs:
        return f"{module} is in no installed app. Add its app to INSTALLED_APPS, and put the task into its jobs.py."
    path = max(configs, key=len).replace(".", "/")
    return f"it is in {module}, which nothing imports at start. Move it to {path}/jobs.py, or import it there."


def describe_duplicate(first: "Task[Any, Any]", second: "Task[Any, Any]") -> str:
    """An error message about two functions that are registered under the same name."""
    return (
        f"Two tasks are registered as {first.name!r}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}. Give one of them another name with @job(name=…)."
    )


def _source(task: "Task[Any, Any]") -> tuple[str, str]:
    return task.__module__, task.__qualname__

"""The names of tasks and queues that an operator types: completed, or refused with a suggestion."""

import difflib
from typing import Any

from django.core.management.base import CommandError

from ...events.log_format import printable
from ...operators import known_names
from ...tasks.registry import registry
from ...tasks.task import Task

MOST_SHOWN = 10


def full_task_name(typed: str) -> str:
    """The name of the registered task that is typed in full, or by its end: `send_receipt`; else the text as it is."""
    ends = _ending_in(typed)
    return ends[0] if len(ends) == 1 and typed not in _registered() else typed


def registered_task(typed: str) -> Task[Any, Any]:
    """The task with this name, in full or its end. Raise `CommandError` if there is none, or more than one."""
    name = full_task_name(typed)
    if name not in _registered():
        raise CommandError(_unknown_task(name, _registered()))
    return registry.get(name)


def task_problem(name: str) -> str:
    """Why there is no job of this task: nothing has this name. Empty if a registered task has, or one of a job."""
    if name in _registered():
        return ""
    names = known_names.task_names()
    return "" if name in names else _unknown_task(name, names)


def queue_problem(name: str) -> str:
    """Why there is no job in this queue: nothing has this name. Empty if a task, a worker or a job has."""
    names = known_names.queue_names()
    return "" if name in names else f"No task, worker or job has the queue {name!r}.{_meant(name, names)}"


def require_known_queue(name: str) -> None:
    """Raise `CommandError` if nothing has this queue."""
    if problem := queue_problem(name):
        raise CommandError(problem)


def _unknown_task(name: str, known: list[str]) -> str:
    if ends := _ending_in(name):
        return f"Several tasks are called {name!r}: {', '.join(ends)}."
    return f"No task is called {name!r}.{_meant(name, known)}"


def _registered() -> list[str]:
    return [task.name for task in registry]


def _ending_in(name: str) -> list[str]:
    return sorted(known for known in _registered() if known.endswith(f".{name}"))


def _meant(name: str, known: list[str]) -> str:
    """The name that is most like this one, in full or by its end; else some that there are."""
    by_text = {text: each for each in known for text in (each.rpartition(".")[2], each)}
    if close := difflib.get_close_matches(name, by_text, n=1):
        return f" Did you mean {by_text[close[0]]!r}?"
    more = f", and {len(known) - MOST_SHOWN:,} more" if len(known) > MOST_SHOWN else ""
    return f" There are: {', '.join(map(printable, known[:MOST_SHOWN]))}{more}." if known else ""

"""`@periodic`: enqueues a task at times, or at an interval.

Invariant: it raises at import if a supervisor could not enqueue the task. A task of Django's is checked by `check`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from ...exceptions import InvalidTask
from ...jobs.task import Task
from .entry import CatchUp, Entry, Overlap, as_json, entries, jitter_seconds, when

AnyTask = TypeVar("AnyTask")


def periodic(
    moment: str | timedelta,
    /,
    *,
    name: str | None = None,
    timezone: str | None = None,
    catch_up: CatchUp = "latest",
    overlap: Overlap = "allow",
    jitter: timedelta | float | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Callable[[AnyTask], AnyTask]:
    """Enqueue a task by a cron expression (`"0 9 * * mon-fri"`) or at an interval (`timedelta(minutes=5)`).

    Goes above `@job`, or above Django's `@task`, and may stand there several times.

    name: of the schedule; default: that of the task. A second schedule of one task needs a name.
    timezone: of the cron expression, such as "Europe/Berlin"; default: the setting `TIME_ZONE`.
    catch_up: what happens once workers run again after a time without any: "latest" enqueues one job for the times
    that have passed, "all" one for each, at most 100, "skip" none.
    overlap: "skip" enqueues nothing while the last job is unfinished.
    jitter: each job waits for a random time of up to so many seconds.
    The other keywords are arguments of the task; `args` and `kwargs` take those that have no or another name.

    Raises `InvalidOption` for a value that cannot be used, `InvalidArguments` for arguments that do not fit the task.
    """

    def schedule(task: AnyTask) -> AnyTask:
        task_name = name_of(task)
        call: dict[str, Any] = {"args": args, "kwargs": {**(kwargs or {}), **arguments}}
        if isinstance(task, Task):
            with suppress(ImproperlyConfigured):  # the checks report a SKIPQUEUE that is not valid
                call = as_json(task, **call)
        entry = Entry(
            name=name or task_name,
            task=task_name,
            source="code",
            timezone=timezone or django_settings.TIME_ZONE,
            catch_up=catch_up,
            overlap=overlap,
            jitter=jitter_seconds(jitter),
            **call,
            **when(moment),
        )
        entries.add(entry, task)
        return task

    return schedule


def name_of(task: Any) -> str:
    """The name of a task of `@job`, or of Django's. Raises `InvalidTask` for anything else."""
    if isinstance(task, Task):
        return task.name
    path = getattr(task, "module_path", None)  # of a task of Django's
    if not isinstance(path, str):
        raise InvalidTask(f"@periodic goes above @job or @task, not above {task!r}.")
    return path

"""`@periodic`, the decorator that makes supervisors enqueue a task by a cron expression or at an interval.

If a supervisor could not enqueue the task, the decorator raises at import. For tasks of Django's `@task`, a system
check reports this instead.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from ...exceptions import InvalidTask
from ...jobs.task import Task
from .entry import CatchUp, Overlap, ScheduleEntry, add_entry, columns_of_times, jitter_seconds, stored_call

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

    Put `@periodic` above `@job`, or above Django's `@task`. A task may have several schedules.

    name: the name of the schedule; default: the task's name. A second schedule of the same task needs a name.
    timezone: the time zone of the cron expression, such as "Europe/Berlin"; default: the setting `TIME_ZONE`.
    catch_up: what a supervisor enqueues for times that passed while none ran: "latest": one job, for the latest time;
    "all": a job for each time, at most 100; "skip": nothing.
    overlap: "skip" enqueues nothing while the last job is unfinished.
    jitter: each job is delayed by a random time of up to this many seconds. All other keywords are arguments of the
    task. `args` and `kwargs` take arguments that cannot be keywords here.

    Raises `InvalidOption` if a value is not valid, and `InvalidArguments` if the arguments do not fit the task.
    """

    def schedule(task: AnyTask) -> AnyTask:
        task_name = name_of(task)
        call: dict[str, Any] = {"args": args, "kwargs": {**(kwargs or {}), **arguments}}
        if isinstance(task, Task):
            with suppress(ImproperlyConfigured):  # the checks report a SKIPQUEUE that is not valid
                call = stored_call(task, **call)
        entry = ScheduleEntry(
            name=name or task_name,
            task=task_name,
            source="code",
            timezone=timezone or django_settings.TIME_ZONE,
            catch_up=catch_up,
            overlap=overlap,
            jitter=jitter_seconds(jitter),
            **call,
            **columns_of_times(moment),
        )
        add_entry(entry, task)
        return task

    return schedule


def name_of(task: Any) -> str:
    """Return the name of a task of `@job` or of Django's `@task`. Raises `InvalidTask` for anything else."""
    if isinstance(task, Task):
        return task.name
    path = getattr(task, "module_path", None)  # an attribute of Django's tasks
    if not isinstance(path, str):
        raise InvalidTask(f"@periodic must be put above @job or @task, not above {task!r}.")
    return path

"""Import Django's task framework, from Django itself or from its backport for older versions of Django.

No other module of this package imports `django.tasks` or `django_tasks`.
"""

import logging
from typing import TYPE_CHECKING, Any

import django
from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal
from django.utils.module_loading import import_string

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError, TaskResult
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import log_task_finished, log_task_started, task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    LOGGER = "django.tasks"
else:
    try:
        from django_tasks import TaskContext, TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError, TaskResult
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import log_task_finished, log_task_started, task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ImportError as error:
        raise ImproperlyConfigured(
            f"Django {django.get_version()} has no task framework of its own, and its backport cannot be imported "
            f"({error}). Install it with: pip install 'django-skipqueue[tasks]'"
        ) from error

    LOGGER = "django_tasks"

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:  # Django's own classes cannot be subscripted when the code runs
    AnyTask, AnyResult = Task, TaskResult

__all__ = [
    "LOGGER",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "has_listeners",
    "log_task_finished",
    "log_task_started",
    "normalize_json",
    "sender_for",
    "settings_of",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

_logger = logging.getLogger(LOGGER)


def has_listeners(signal: Signal, *, log_receiver: object, level: int) -> bool:
    """Return whether the signal has a receiver. Django's `log_receiver` only counts if its logger has this level."""
    has_others = any(key[0] != id(log_receiver) for key, *_ in signal.receivers)
    return has_others or (bool(signal.receivers) and _logger.isEnabledFor(level))


def settings_of(alias: str) -> dict[str, Any]:
    """Return the settings of the backend with this alias in `TASKS`; empty if the alias of an old job is gone.

    Workers use this function instead of `task_backends`, which would make a new backend in each attempt.
    """
    backend_settings: dict[str, Any] = task_backends.settings.get(alias, {})
    return backend_settings


def sender_for(alias: str) -> type[BaseTaskBackend]:
    """Return the sender of Django's signals about a result: the class of the backend on which it was enqueued."""
    path = settings_of(alias).get("BACKEND")
    sender: type[BaseTaskBackend] = BaseTaskBackend if path is None else import_string(path)
    return sender

"""A backend for Django's tasks: `TASKS = {"default": {"BACKEND": "django_skipqueue.backend.SkipQueueBackend"}}`.

A `@task` becomes an entry in the registry of `@job`, its result is the row of a job, and `runworker` runs it.
Invariant: a backend object holds only settings. Django makes it while modules are imported, and again in every thread,
so it uses neither a model nor a database before the first enqueue.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.utils.module_loading import autodiscover_modules

from ...conf import settings
from ...jobs.options import check_size
from ...jobs.placement import shard_of
from ...jobs.task import yields
from ...jobs.task_call import TaskCall
from ...values.records import handle_of, parse_handle
from . import finishing, options
from .definition import SkipQueueTask, definition_of, options_of, registered
from .framework import AnyResult, AnyTask, BaseTaskBackend, InvalidTask, Task, TaskResultDoesNotExist, task_enqueued
from .mapping import result_of, spec, variant

if TYPE_CHECKING:
    from ...models import Job

__all__ = ["SkipQueueBackend", "SkipQueueTask"]

finishing.connect()


class SkipQueueBackend(BaseTaskBackend):
    """Enqueues tasks as jobs, which `manage.py runworker` runs."""

    task_class = SkipQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @classmethod
    def discover_tasks(cls) -> None:
        """Import each app's `tasks` module and register every task there, also those defined for another backend.

        Called when the app is ready. `.using(backend=…)` can enqueue any task here, so a worker must know all of them.
        """
        autodiscover_modules("tasks")
        for config in apps.get_app_configs():
            module = sys.modules.get(f"{config.name}.tasks")
            for value in vars(module).values() if module else ():
                if isinstance(value, Task):
                    registered(value)

    def validate_task(self, task: AnyTask) -> None:
        """Raise `InvalidTask` for a task that cannot be enqueued. `run_after` may also be a timedelta."""
        due_in = isinstance(task.run_after, timedelta)
        super().validate_task(variant(task, run_after=None) if due_in else task)
        options_of(task)
        if yields(task.func):
            raise InvalidTask(f"{task.module_path} yields, so calling it would run nothing of it.")

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Insert a job in the caller's transaction. Raises, and writes nothing, for arguments that cannot be stored.

        If an unfinished job holds the unique key, returns the result of that job, and sends no signal.
        """
        job = self.call_of(task, args, kwargs).defer()
        if not job.created:  # it holds the unique key, and may be one of another task
            return result_of(job, definition_of(job) or task)
        return self.announce(task, job)

    def announce(self, task: AnyTask, job: "Job") -> AnyResult:
        """Send the signal of a job that was inserted, and return its result."""
        result = result_of(job, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    def call_of(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """The task with arguments. Raises as `enqueue` does."""
        self.validate_task(task)
        own, given = options_of(task), options.parsed(self.options)
        known = registered(task)
        checked = check_size(known.normalized(args, kwargs), settings.max_argument_bytes)
        wanted = spec(task, own, given, alias=self.alias)
        return TaskCall(wanted, checked, given.database, shard_of(known, checked))

    def get_result(self, result_id: str) -> AnyResult:
        """The result with this id, whichever process enqueued it. Raises `TaskResultDoesNotExist`.

        An id that names no database, of before there were several, is looked for in that of the `OPTIONS`, or else in
        `SKIPQUEUE["DATABASE"]`.
        """
        job = self._find(result_id)
        task = None if job is None else definition_of(job)
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, task)

    def check(self, **_: Any) -> list[CheckMessage]:
        """Check the settings of this alias in `TASKS`."""
        found: list[CheckMessage] = []
        if not apps.is_installed("django_skipqueue"):
            found.append(
                Error(
                    f"TASKS[{self.alias!r}] keeps its tasks in the tables of django_skipqueue, which is not installed.",
                    hint="Add 'django_skipqueue' to INSTALLED_APPS and run `manage.py migrate`.",
                    id="skipqueue.E006",
                )
            )
        found += [
            Error(
                f"TASKS[{self.alias!r}]['OPTIONS']: {problem}",
                hint="The how-to “Use Django's tasks” lists every option with its type.",
                id="skipqueue.E007",
            )
            for problem in options.problems(self.options)
        ]
        return found

    def _find(self, result_id: object) -> "Job | None":
        from ...models import Job

        home = options.parsed(self.options).default_database
        try:
            named = parse_handle(str(result_id))
        except ValueError:  # no handle, or a number of thousands of digits
            return None
        spelled = str(named.id) if named.database is None else handle_of(named.database, named.id)
        if spelled != str(result_id) or len(str(named.id)) > 18:  # one spelling for each id of a bigint
            return None
        if named.database not in (None, home, *settings.served_databases):
            return None
        return Job.objects.using(named.database or home).filter(pk=named.id).first()

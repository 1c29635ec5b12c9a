"""A backend for Django's tasks: `TASKS = {"default": {"BACKEND": "django_skipqueue.backend.SkipQueueBackend"}}`.

A `@task` becomes an entry in the registry of `@job`, its result is the row of a job, and `runworker` runs it.
Invariant: a backend object holds only settings. Django makes it while modules are imported, and again in every thread,
so it uses neither a model nor a database before the first enqueue.

The receivers at the end send Django's `task_finished` after the outcome of a finished job is committed. Invariant: the
signal is sent once for each finished job, and never for an attempt that will be retried or whose lease was lost. It is
sent in the thread of the `EventDispatcher`, so that a slow receiver delays no job.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.dispatch import Signal
from django.utils.module_loading import autodiscover_modules

from ...conf import settings
from ...exceptions import RecordedError
from ...jobs.options import check_size
from ...jobs.placement import shard_of
from ...jobs.task import yields
from ...jobs.task_call import TaskCall
from ...signals import dependant_discarded, job_cancelled, job_completed, job_discarded, job_failed, job_recovered
from ...values.codec import decode
from ...values.records import LEFT_OUT, Attempt, Dependant, RecoveredJob, handle_of, parse_handle
from .definition import SkipQueueTask, definition_of, entry, options_of, registered
from .framework import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    has_listeners,
    log_task_finished,
    sender_for,
    task_enqueued,
    task_finished,
)
from .mapping import ALIAS, option_problems, parsed_options, result_of, spec, task_status, unread, variant

if TYPE_CHECKING:
    from ...models import Job

__all__ = ["SkipQueueBackend", "SkipQueueTask"]


class SkipQueueBackend(BaseTaskBackend):
    """Enqueues tasks as jobs, which `manage.py runworker` runs."""

    task_class = SkipQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @classmethod
    def discover_tasks(cls) -> None:
        """Import each app's `tasks` module and register every task there, also tasks of another backend.

        Called when the app is ready. `.using(backend=…)` can enqueue any task here, so a worker must know all tasks.
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
        if not job.created:  # the job holds the unique key, and may be a job of another task
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
        own, given = options_of(task), parsed_options(self.options)
        known = registered(task)
        checked = check_size(known.normalized(args, kwargs), settings.max_argument_bytes)
        wanted = spec(task, own, given, alias=self.alias)
        return TaskCall(wanted, checked, given.database, shard_of(known, checked))

    def get_result(self, result_id: str) -> AnyResult:
        """The result with this id, whichever process enqueued it. Raises `TaskResultDoesNotExist`.

        An id from before the project had several databases names none. It is looked for in the database of the
        `OPTIONS`, or else in `SKIPQUEUE["DATABASE"]`.
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
                hint="The page “Django's tasks” of the documentation (docs/how-to/django-tasks.md) lists every option.",
                id="skipqueue.E007",
            )
            for problem in option_problems(self.options)
        ]
        return found

    def _find(self, result_id: object) -> "Job | None":
        from ...models import Job

        home = parsed_options(self.options).default_database
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


def _ended(attempt: Attempt, **_: Any) -> None:
    job, outcome = attempt.job, attempt.outcome
    task = entry(job.task)
    if task is None or not _has_listeners(outcome.status):
        return
    if job.args != LEFT_OUT:
        result = unread(job, task.definition, status=outcome.status, database=attempt.database)
        _send(result, outcome.error)
        return
    from ...models import Job

    row = Job.objects.using(attempt.database).filter(pk=job.id, status=outcome.status).first()
    if row is not None:  # somebody may have deleted or retried the job
        _send(result_of(row, task.definition), outcome.error)


def _ended_without_attempt(job: RecoveredJob | Dependant, database: str, **_: Any) -> None:
    """Send the signal for a job whose worker died in the last attempt, or that needs a job that has not completed.

    Sends nothing if somebody has retried or deleted the job.
    """
    from ...models import Job

    if job.status not in ("failed", "discarded") or decode(job.metadata).get(ALIAS) is None:
        return
    if _has_listeners(job.status):
        row = Job.objects.using(database).filter(pk=job.id, status=job.status).first()
        task = row and definition_of(row)
        if row and task:
            _send(result_of(row, task), row.errors[-1] if row.errors else None)


def _has_listeners(status: str) -> bool:
    level = logging.INFO if task_status(status) == TaskResultStatus.SUCCESSFUL else logging.ERROR
    return has_listeners(task_finished, log_receiver=log_task_finished, level=level)


def _send(result: AnyResult, error: dict[str, Any] | None) -> None:
    """Send the signal while the error is being handled: receivers read `sys.exc_info()`, as Django's own does."""
    sender = sender_for(result.backend)
    if error is None:
        task_finished.send_robust(sender, task_result=result)
        return
    try:
        raise RecordedError(error["traceback"] or f"{error['exception']}: {error['message']}")
    except RecordedError as recorded:
        recorded.__traceback__ = None  # the recorded traceback is in its text
        task_finished.send_robust(sender, task_result=result)


RECEIVERS: tuple[tuple[Signal, Any], ...] = (
    (job_completed, _ended),
    (job_failed, _ended),
    (job_discarded, _ended),
    (job_cancelled, _ended),
    (job_recovered, _ended_without_attempt),
    (dependant_discarded, _ended_without_attempt),
)

for signal, receiver in RECEIVERS:
    signal.connect(receiver, dispatch_uid=__name__)

"""A backend for Django's tasks: `TASKS = {"default": {"BACKEND": "django_skipqueue.backend.SkipQueueBackend"}}`.

Each `@task` is registered like a task of `@job`, its results are rows of jobs, and `runworker` runs it. A backend
object holds only settings, and uses neither models nor a database before the first enqueue, because Django makes it
while modules are imported, and again in every thread.

The receivers at the end of the file send Django's signal `task_finished` after the outcome of a finished job is
committed. It is sent once for each finished job, but not for attempts that will be retried or whose lease was lost. It
is sent in the thread of the `EventDispatcher`, so that a slow receiver delays no job.
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
        """Import the `tasks` module of each app, and register all its tasks, including tasks of other backends.

        Called when Django has loaded all apps. By `.using(backend=…)` any task can be enqueued on this backend, so
        workers must know all tasks.
        """
        autodiscover_modules("tasks")
        for config in apps.get_app_configs():
            module = sys.modules.get(f"{config.name}.tasks")
            for value in vars(module).values() if module else ():
                if isinstance(value, Task):
                    registered(value)

    def validate_task(self, task: AnyTask) -> None:
        """Raise `InvalidTask` for a task that cannot be enqueued. `run_after` may be a datetime or a timedelta."""
        has_delay = isinstance(task.run_after, timedelta)
        super().validate_task(variant(task, run_after=None) if has_delay else task)
        options_of(task)
        if yields(task.func):
            raise InvalidTask(f"{task.module_path} yields, so calling it would run nothing of it.")

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Insert a job in the caller's transaction. If arguments cannot be stored, raises and writes nothing.

        If an unfinished job already holds the unique key, returns the result of that job, and sends no signal.
        """
        job = self.call_of(task, args, kwargs).defer()
        if not job.created:  # an existing job, perhaps of another task, holds the unique key
            return result_of(job, definition_of(job) or task)
        return self.announce(task, job)

    def announce(self, task: AnyTask, job: "Job") -> AnyResult:
        """Send Django's signal `task_enqueued` for a new job, and return its result."""
        result = result_of(job, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    def call_of(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """Make the call of a task with these arguments. Raises the errors that `enqueue` raises."""
        self.validate_task(task)
        task_options, backend_options = options_of(task), parsed_options(self.options)
        entry_of_task = registered(task)
        call = check_size(entry_of_task.normalized(args, kwargs), settings.max_argument_bytes)
        job_spec = spec(task, task_options, backend_options, alias=self.alias)
        return TaskCall(job_spec, call, backend_options.database, shard_of(entry_of_task, call))

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result with this id, whichever process enqueued it. Raises `TaskResultDoesNotExist`.

        An id from before the project had several databases does not name a database. Such a result is looked up in the
        database of the backend's `OPTIONS`, or else in `SKIPQUEUE["DATABASE"]`.
        """
        job = self._find(result_id)
        task = None if job is None else definition_of(job)
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, task)

    def check(self, **_: Any) -> list[CheckMessage]:
        """Check the settings of this backend in `TASKS`."""
        errors: list[CheckMessage] = []
        if not apps.is_installed("django_skipqueue"):
            errors.append(
                Error(
                    f"TASKS[{self.alias!r}] keeps its tasks in the tables of django_skipqueue, which is not installed.",
                    hint="Add 'django_skipqueue' to INSTALLED_APPS and run `manage.py migrate`.",
                    id="skipqueue.E006",
                )
            )
        errors += [
            Error(
                f"TASKS[{self.alias!r}]['OPTIONS']: {problem}",
                hint="The page “Django's tasks” of the documentation (docs/how-to/django-tasks.md) lists every option.",
                id="skipqueue.E007",
            )
            for problem in option_problems(self.options)
        ]
        return errors

    def _find(self, result_id: object) -> "Job | None":
        """Return the job with this result id; `None` if there is no such job."""
        from ...models import Job

        default_database = parsed_options(self.options).default_database
        try:
            reference = parse_handle(str(result_id))
        except ValueError:  # not a handle, or a number with thousands of digits
            return None
        alias, job_id = reference.database, reference.id
        canonical_id = str(job_id) if alias is None else handle_of(alias, job_id)
        if canonical_id != str(result_id) or len(str(job_id)) > 18:  # such as 007, or too large for a bigint
            return None
        if alias not in (None, default_database, *settings.served_databases):
            return None
        return Job.objects.using(alias or default_database).filter(pk=job_id).first()


def _on_attempt_ended(attempt: Attempt, **_: Any) -> None:
    job, outcome = attempt.job, attempt.outcome
    task = entry(job.task)
    if task is None or not _has_listeners(outcome.status):
        return
    if job.args != LEFT_OUT:  # the event has the arguments, so the row need not be read
        result = unread(job, task.definition, status=outcome.status, database=attempt.database)
        _send_finished(result, outcome.error)
        return
    from ...models import Job

    row = Job.objects.using(attempt.database).filter(pk=job.id, status=outcome.status).first()
    if row is not None:  # somebody may have deleted or retried the job
        _send_finished(result_of(row, task.definition), outcome.error)


def _on_end_without_attempt(job: RecoveredJob | Dependant, database: str, **_: Any) -> None:
    """Send the signal for a job that ended without an attempt: its worker died, or a job that it waits for failed.

    Sends nothing if somebody has retried or deleted the job meanwhile.
    """
    from ...models import Job

    if job.status not in ("failed", "discarded") or decode(job.metadata).get(ALIAS) is None:
        return
    if _has_listeners(job.status):
        row = Job.objects.using(database).filter(pk=job.id, status=job.status).first()
        task = row and definition_of(row)
        if row and task:
            _send_finished(result_of(row, task), row.errors[-1] if row.errors else None)


def _has_listeners(status: str) -> bool:
    level = logging.INFO if task_status(status) == TaskResultStatus.SUCCESSFUL else logging.ERROR
    return has_listeners(task_finished, log_receiver=log_task_finished, level=level)


def _send_finished(result: AnyResult, error: dict[str, Any] | None) -> None:
    """Send Django's signal `task_finished`. Receivers may read the job's error from `sys.exc_info()`."""
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
    (job_completed, _on_attempt_ended),
    (job_failed, _on_attempt_ended),
    (job_discarded, _on_attempt_ended),
    (job_cancelled, _on_attempt_ended),
    (job_recovered, _on_end_without_attempt),
    (dependant_discarded, _on_end_without_attempt),
)

for signal, receiver in RECEIVERS:
    signal.connect(receiver, dispatch_uid=__name__)

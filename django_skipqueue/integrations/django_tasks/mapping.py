"""Converts a Django task and the `OPTIONS` of its alias to the columns of a job, and a job to Django's task result.

No other module converts between the two. Two results made from the same row are equal, even in different processes.
Reading the options sends no query and imports nothing, because backends are made while modules are imported.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string
from django.utils.timezone import make_naive

from ...conf import own_retention_problems, settings
from ...events.log_format import job_name
from ...exceptions import InvalidOption, UnknownTask
from ...jobs.options import Options, retention_column
from ...jobs.registry import registry
from ...values.backoff import Backoff
from ...values.bounds import did_you_mean
from ...values.codec import decode, encode
from ...values.records import ClaimedJob, EncodedCall, JobSpec, parse_handle
from ...values.settings import Retention
from ...worker.preflight import engine_problem
from .framework import (
    AnyResult,
    AnyTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    settings_of,
)

if TYPE_CHECKING:
    from ...models import Job


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """One field for each key of `OPTIONS`, in lower case."""

    database: str | None = None
    """The alias of the jobs' database. With `None`, `SKIPQUEUE["PLACEMENT"]` chooses it, or else it is `DATABASE`."""
    max_attempts: int | None = None
    """After how many attempts a job fails, unless its task sets the number. `None` means
    `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """A function, or its dotted path. It takes the number of a failed attempt, and returns how many seconds to wait."""
    timeout: float | None = None
    """After how many seconds an attempt is interrupted and fails. `None` means never."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """How long finished jobs are kept, by status, where this is shorter than `SKIPQUEUE["RETENTION"]`."""

    @property
    def default_database(self) -> str:
        """The alias of the database in which to look for a job whose id names no database."""
        return self.database or settings.database


OPTION_NAMES = tuple(option.name for option in fields(BackendOptions))


def parsed_options(options: Mapping[str, Any]) -> BackendOptions:
    """Return the options of one alias, with defaults. Ignores unknown options, which `option_problems` reports."""
    known_options = {name: options[name] for name in OPTION_NAMES if options.get(name) is not None}
    return BackendOptions(**known_options)


def options_for(alias: str) -> BackendOptions:
    """Return the options of this alias; the defaults if `TASKS` has no such alias."""
    return parsed_options(settings_of(alias).get("OPTIONS", {}))


def resolved(backoff: Backoff | str) -> Backoff:
    function: Backoff = import_string(backoff) if isinstance(backoff, str) else backoff
    return function


def option_problems(options: Mapping[str, Any]) -> Iterator[str]:
    for name in options:
        if name not in OPTION_NAMES:
            yield f"there is no option {name!r}.{did_you_mean(str(name), list(OPTION_NAMES))}"
    if problem := engine_problem(parsed_options(options).default_database):
        yield f"'database': {' '.join(problem)}"
    elif options.get("database") and not settings.may_hold_jobs(options["database"]):
        yield f"'database' is {options['database']!r}, which SKIPQUEUE['DATABASES'] does not list."
    try:
        Options(max_attempts=options.get("max_attempts"), timeout=options.get("timeout"))
    except InvalidOption as error:
        yield str(error)
    yield from _backoff_problems(options.get("backoff"))
    if (retention := options.get("retention")) is not None:
        yield from own_retention_problems("'retention'", retention)


def _backoff_problems(backoff: Any) -> Iterator[str]:
    if backoff is None:
        return
    try:
        delay = resolved(backoff)(1)
    except Exception as error:  # the import failed, the value is not callable, or the call raised
        yield f"'backoff' cannot be used: {type(error).__name__}: {error}"
        return
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not delay >= 0:
        yield f"'backoff' must give seconds for the number of an attempt, but for 1 it gave {delay!r}."


TASK_STATUSES = {
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "discarded": TaskResultStatus.FAILED,
}
"""In any other status, a job is waiting, and Django's status is READY."""


def task_status(status: str) -> TaskResultStatus:
    return TASK_STATUSES.get(status, TaskResultStatus.READY)


ALIAS, DEFERRED = "backend", "deferred"
"""Two keys of a job's metadata: the alias in `TASKS` through which it was enqueued, and whether it had a
`run_after`."""


# Enqueueing


def call(args: Sequence[Any], kwargs: Mapping[str, Any], columns: Mapping[str, Any]) -> EncodedCall:
    """Encode the arguments of a job. Raises `TypeError` or `ValueError` for a value that is not JSON.

    columns: the values of the columns that depend on the arguments.
    """
    return EncodedCall(encode("args", storable(list(args))), encode("kwargs", storable(dict(kwargs))), columns)


def spec(task: AnyTask, task_options: Options, backend_options: BackendOptions, *, alias: str) -> JobSpec:
    """Make the columns that all jobs of the task share. The task's own options override the `OPTIONS` of the alias."""
    metadata = {
        ALIAS: alias,
        DEFERRED: task.run_after is not None,
    }
    return task_options.spec(
        task.module_path,
        max_attempts=backend_options.max_attempts if task_options.max_attempts is None else task_options.max_attempts,
        run_after=task.run_after,
        # A timeout of the task itself is not stored here. The worker reads it from the task at each attempt.
        timeout=backend_options.timeout if task_options.timeout is None else None,
        retention=retention_column(backend_options.retention),
        metadata=json.dumps({key: value for key, value in metadata.items() if value}),
    )


def storable(value: Any) -> Any:
    """Convert `value` to JSON as Django does (tuples become lists, bytes become text), and back to Python."""
    return json.loads(json.dumps(normalize_json(value)))


# Results


class SkipQueueResult(AnyResult):
    """A task result of this backend. Its `args` and `kwargs` are the stored JSON values, as in other backends."""

    @property
    def return_value(self) -> Any:
        """The job's return value, converted to the type that the task's return annotation names.

        Raises `ValueError` if the job has not completed, and the same exceptions as `Task.result_of`.
        """
        json_value = super().return_value
        try:
            return registry.get(self.task.module_path).typed_result(json_value)
        except UnknownTask:  # the task belongs to another deployment
            return json_value

    @property
    def database(self) -> str:
        return parse_handle(self.id).database or options_for(self.backend).default_database


def result_of(job: "Job", task: AnyTask) -> AnyResult:
    failed_attempts = _failed_attempts(job)
    started_at, last_attempted_at = _start_times(job, failed_attempts)
    alias = job.metadata.get(ALIAS, task.backend)
    run_after = job.run_after if job.metadata.get(DEFERRED) else None
    result: AnyResult = SkipQueueResult(
        task=variant(task, backend=alias, queue_name=job.queue_name, priority=job.priority, run_after=run_after),
        id=job_name(job._state.db or settings.database, job.pk),
        status=task_status(job.status),
        enqueued_at=job.enqueued_at,
        started_at=started_at,
        last_attempted_at=last_attempted_at,
        finished_at=job.finished_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=alias,
        errors=[
            TaskError(exception_class_path=entry["exception"], traceback=entry["traceback"] or _error_line(entry))
            for entry in failed_attempts.values()
        ],
        worker_ids=[_worker_id(job, failed_attempts, number) for number in range(1, job.attempts + 1)],
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


Entry = dict[str, Any]
"""An item of a job's `errors`, which describes one failed attempt."""

UNKNOWN_WORKER = ""
"""The worker's id for an attempt whose error the row no longer has, because the row keeps only the last ten errors."""


def _failed_attempts(job: "Job") -> dict[int, Entry]:
    """Return the errors of the failed attempts since the last manual retry, by the number of the attempt.

    After a manual retry the attempts are numbered from 1 again. Errors from before it stay in the row, but are not part
    of the result.
    """
    newest_first: dict[int, Entry] = {}
    # A running or completed attempt has no error. So an error with its number is older than the last manual retry.
    # From the newest error to the oldest, the numbers fall until the manual retry, and rise there.
    lowest_later_number = job.attempts if job.status in ("running", "completed") else job.attempts + 1
    for entry in reversed(job.errors):
        number = entry["attempt"] or job.attempts
        if number >= lowest_later_number:
            break
        newest_first[number] = entry
        lowest_later_number = number
    return dict(reversed(newest_first.items()))


def _start_times(job: "Job", failed_attempts: Mapping[int, Entry]) -> tuple[datetime | None, datetime | None]:
    """Return when the first and the last attempt began, as far as the row knows: it keeps only ten errors."""
    last_start = job.started_at if job.attempts else None
    if job.attempts and last_start is None and failed_attempts:  # a worker claimed the job again, and released it unrun
        last_start = _started_at(failed_attempts[max(failed_attempts)])
    first_start = (
        _started_at(failed_attempts[min(failed_attempts)]) if job.attempts > 1 and failed_attempts else last_start
    )
    return first_start, last_start


def _worker_id(job: "Job", failed_attempts: Mapping[int, Entry], number: int) -> str:
    if number in failed_attempts:
        return str(failed_attempts[number].get("worker_id", failed_attempts[number]["worker"]))
    return job.locked_by if number == job.attempts else UNKNOWN_WORKER


def _started_at(entry: Entry) -> datetime:
    began = datetime.fromisoformat(entry["at"]) - timedelta(milliseconds=entry["duration_ms"])
    return began if django_settings.USE_TZ else make_naive(began)


def _error_line(entry: Entry) -> str:
    return f"{entry['exception']}: {entry['message']}\n"


RESULT_FIELDS = tuple(field.name for field in fields(AnyResult))


class UnreadResult(SkipQueueResult):
    """A result that has only the fields which a worker knows without a query. Using another field reads the row."""

    _database: str
    _attempt: int

    def __getattr__(self, name: str) -> Any:
        """Read the row, because this field has no value yet."""
        if name not in RESULT_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.read()
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        """Compare all fields. So this result equals every other result that is made from the same row."""
        if not isinstance(other, TaskResult):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in RESULT_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # like Django's own results, which contain lists

    @property
    def attempts(self) -> int:
        """The number of this attempt, without a query."""
        return len(self.worker_ids) if self._has("worker_ids") else self._attempt

    def read(self) -> None:
        """Set the fields that have no value yet. Sends one query."""
        from ...models import Job

        job = Job.objects.using(self._database).filter(pk=parse_handle(self.id).id).first()
        if job is None:
            raise TaskResultDoesNotExist(self.id)
        complete_result = result_of(job, self.task)
        for name in RESULT_FIELDS:
            if not self._has(name):
                object.__setattr__(self, name, getattr(complete_result, name))

    def _has(self, name: str) -> bool:
        try:
            object.__getattribute__(self, name)
        except AttributeError:
            return False
        return True


def unread(job: ClaimedJob, task: AnyTask, *, status: str, database: str) -> UnreadResult:
    """Make the result of a claimed job without a query. It has the id, the task, the status and the arguments."""
    result = UnreadResult.__new__(UnreadResult)
    vars(result).update(_database=database, _attempt=job.attempt)
    metadata = decode(job.metadata)
    alias = metadata.get(ALIAS, task.backend)
    run_after = _as_datetime(job.run_after) if metadata.get(DEFERRED) else None
    known_fields = {
        "task": variant(task, backend=alias, queue_name=job.queue_name, priority=job.priority, run_after=run_after),
        "id": job_name(database, job.id),
        "status": task_status(status),
        "args": decode(job.args),
        "kwargs": decode(job.kwargs),
        "backend": alias,
    }
    if status == "running":  # once the outcome is written, the time is read from the row
        known_fields["last_attempted_at"] = _as_datetime(job.locked_at)
    for name, value in known_fields.items():
        object.__setattr__(result, name, value)
    return result


def _as_datetime(seconds: float) -> datetime:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if django_settings.USE_TZ else make_naive(moment)


# Tasks


def variant(task: AnyTask, **changes: Any) -> AnyTask:
    """Copy a task with changed fields. Does not validate it, because the backend's rules may have changed meanwhile."""
    task_class: Any = type(task)
    copy: AnyTask = object.__new__(task_class)
    for name in _field_names(task_class):
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(task, name))
    return copy


@cache
def _field_names(task_class: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(task_class))


def stand_in(task_name: str, *, alias: str) -> AnyTask:
    """Make a task that cannot be run, for the result of a job whose task this process does not know.

    Nothing is imported, because a name in a row must never cause an import.
    """

    def unknown(*_args: Any, **_kwargs: Any) -> Any:
        raise UnknownTask(f"No task is registered as {task_name!r} in this process.")

    module, _, function = task_name.rpartition(".")
    unknown.__module__, unknown.__name__, unknown.__qualname__ = module, function, function
    task = object.__new__(AnyTask)
    field_values = {"func": unknown, "priority": 0, "backend": alias, "queue_name": "", "run_after": None}
    task_class: Any = AnyTask
    for name in _field_names(task_class):
        object.__setattr__(task, name, field_values.get(name, False))
    return task

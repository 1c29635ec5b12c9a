"""Maps a Django task and the `OPTIONS` of its alias to the columns of a job, and the columns to a task result.

Invariant: every name and value is mapped here. Two results made from one row are equal, whichever processes make them.
To read the options sends no query and imports nothing, because backends are made while modules are imported.
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
    """The alias of the database that holds the jobs; `None`: as `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`."""
    max_attempts: int | None = None
    """Attempts before a job fails, for tasks without their own; `None`: `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """Returns seconds for the number of a failed attempt; or the dotted path of this function."""
    timeout: float | None = None
    """Seconds after which an attempt is interrupted and fails; `None`: never."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    """How long finished jobs are kept, by status, where this is shorter than `SKIPQUEUE["RETENTION"]`."""

    @property
    def default_database(self) -> str:
        """The alias of the database for an id that names none."""
        return self.database or settings.database


OPTION_NAMES = tuple(each.name for each in fields(BackendOptions))


def parsed_options(given: Mapping[str, Any]) -> BackendOptions:
    """The options of one alias, with defaults. Ignores unknown options, which `option_problems` reports."""
    known = {name: given[name] for name in OPTION_NAMES if given.get(name) is not None}
    return BackendOptions(**known)


def options_for(alias: str) -> BackendOptions:
    """The options of this alias; the defaults if `TASKS` has no such alias."""
    return parsed_options(settings_of(alias).get("OPTIONS", {}))


def resolved(backoff: Backoff | str) -> Backoff:
    found: Backoff = import_string(backoff) if isinstance(backoff, str) else backoff
    return found


def option_problems(given: Mapping[str, Any]) -> Iterator[str]:
    for name in given:
        if name not in OPTION_NAMES:
            yield f"there is no option {name!r}.{did_you_mean(str(name), list(OPTION_NAMES))}"
    if problem := engine_problem(parsed_options(given).default_database):
        yield f"'database': {' '.join(problem)}"
    elif given.get("database") and not settings.may_hold_jobs(given["database"]):
        yield f"'database' is {given['database']!r}, which SKIPQUEUE['DATABASES'] does not list."
    try:
        Options(max_attempts=given.get("max_attempts"), timeout=given.get("timeout"))
    except InvalidOption as error:
        yield str(error)
    yield from _backoff_problems(given.get("backoff"))
    if (retention := given.get("retention")) is not None:
        yield from own_retention_problems("'retention'", retention)


def _backoff_problems(backoff: Any) -> Iterator[str]:
    if backoff is None:
        return
    try:
        delay = resolved(backoff)(1)
    except Exception as error:  # the import failed, or the value cannot be called, or it raised
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
"""In any other status a job waits."""


def task_status(status: str) -> TaskResultStatus:
    return TASK_STATUSES.get(status, TaskResultStatus.READY)


ALIAS, DEFERRED = "backend", "deferred"
"""The keys of a job's metadata: the alias on which it was enqueued, and whether it had a `run_after`."""


# Enqueueing


def call(args: Sequence[Any], kwargs: Mapping[str, Any], columns: Mapping[str, Any]) -> EncodedCall:
    """Encode the arguments of a job. Raises `TypeError` or `ValueError` for a value that is not JSON.

    columns: the columns of the job that depend on the arguments.
    """
    return EncodedCall(encode("args", storable(list(args))), encode("kwargs", storable(dict(kwargs))), columns)


def spec(task: AnyTask, own: Options, options: BackendOptions, *, alias: str) -> JobSpec:
    """The columns of the task's jobs, from its own options, or else from the `OPTIONS` of the alias."""
    remembered = {
        ALIAS: alias,
        DEFERRED: task.run_after is not None,
    }
    return own.spec(
        task.module_path,
        max_attempts=options.max_attempts if own.max_attempts is None else own.max_attempts,
        run_after=task.run_after,
        # The task's own timeout is read at each attempt.
        timeout=options.timeout if own.timeout is None else None,
        retention=retention_column(options.retention),
        metadata=json.dumps({key: value for key, value in remembered.items() if value}),
    )


def storable(value: Any) -> Any:
    """Convert `value` to JSON as Django does (tuples become lists, bytes become text), and back to Python."""
    return json.loads(json.dumps(normalize_json(value)))


# Results


class SkipQueueResult(AnyResult):
    """Django's result. `args` and `kwargs` are JSON, as in Django's results."""

    @property
    def return_value(self) -> Any:
        """The return value of the job in the type of its task's annotation.

        Raises `ValueError` if the job has not completed, and as `Task.result_of` does.
        """
        stored = super().return_value
        try:
            return registry.get(self.task.module_path).typed_result(stored)
        except UnknownTask:  # the task belongs to another deployment
            return stored

    @property
    def database(self) -> str:
        return parse_handle(self.id).database or options_for(self.backend).default_database


def result_of(job: "Job", task: AnyTask) -> AnyResult:
    failed = _failed(job)
    started_at, last_attempted_at = _attempted(job, failed)
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
            TaskError(exception_class_path=entry["exception"], traceback=entry["traceback"] or _line(entry))
            for entry in failed.values()
        ],
        worker_ids=[_worker_id(job, failed, number) for number in range(1, job.attempts + 1)],
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


Entry = dict[str, Any]
"""One failed attempt: an item of the job's `errors`."""

FORGOTTEN = ""
"""In place of a worker's id, for an attempt whose error the row does not have: the row keeps the last ten errors."""


def _failed(job: "Job") -> dict[int, Entry]:
    """The failed attempts since the last manual retry, by number.

    A manual retry starts again at attempt 1. Earlier errors belong to the row's history, and not to the result.
    """
    found: dict[int, Entry] = {}
    # A running or completed attempt has no entry, so an entry with its number is older than the last manual retry.
    # Read backwards, the numbers fall until this retry.
    limit = job.attempts if job.status in ("running", "completed") else job.attempts + 1
    for entry in reversed(job.errors):
        number = entry["attempt"] or job.attempts
        if number >= limit:
            break
        found[number] = entry
        limit = number
    return dict(reversed(found.items()))


def _attempted(job: "Job", failed: Mapping[int, Entry]) -> tuple[datetime | None, datetime | None]:
    """When the first attempt of which the row still knows began, and when the last attempt began."""
    last = job.started_at if job.attempts else None
    if job.attempts and last is None and failed:  # the job was claimed again after this attempt, and released
        last = _started_at(failed[max(failed)])
    return _started_at(failed[min(failed)]) if job.attempts > 1 and failed else last, last


def _worker_id(job: "Job", failed: Mapping[int, Entry], number: int) -> str:
    if number in failed:
        return str(failed[number].get("worker_id", failed[number]["worker"]))
    return job.locked_by if number == job.attempts else FORGOTTEN


def _started_at(entry: Entry) -> datetime:
    began = datetime.fromisoformat(entry["at"]) - timedelta(milliseconds=entry["duration_ms"])
    return began if django_settings.USE_TZ else make_naive(began)


def _line(entry: Entry) -> str:
    return f"{entry['exception']}: {entry['message']}\n"


RESULT_FIELDS = tuple(field.name for field in fields(AnyResult))


class UnreadResult(SkipQueueResult):
    """A result with the fields that a worker knows without a query. The first use of another field reads the row."""

    _database: str
    _attempt: int

    def __getattr__(self, name: str) -> Any:
        """Read the row for a field that has no value yet."""
        if name not in RESULT_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.read()
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        """Compare all fields: equal to every result made from this row."""
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
        stored = result_of(job, self.task)
        for name in RESULT_FIELDS:
            if not self._has(name):
                object.__setattr__(self, name, getattr(stored, name))

    def _has(self, name: str) -> bool:
        try:
            object.__getattribute__(self, name)
        except AttributeError:
            return False
        return True


def unread(job: ClaimedJob, task: AnyTask, *, status: str, database: str) -> UnreadResult:
    """The result of a claimed job: its id, task, status and arguments, without a query."""
    result = UnreadResult.__new__(UnreadResult)
    vars(result).update(_database=database, _attempt=job.attempt)
    remembered = decode(job.metadata)
    alias = remembered.get(ALIAS, task.backend)
    run_after = _moment(job.run_after) if remembered.get(DEFERRED) else None
    known = {
        "task": variant(task, backend=alias, queue_name=job.queue_name, priority=job.priority, run_after=run_after),
        "id": job_name(database, job.id),
        "status": task_status(status),
        "args": decode(job.args),
        "kwargs": decode(job.kwargs),
        "backend": alias,
    }
    if status == "running":  # after the settle, the row has this time
        known["last_attempted_at"] = _moment(job.locked_at)
    for name, value in known.items():
        object.__setattr__(result, name, value)
    return result


def _moment(seconds: float) -> datetime:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if django_settings.USE_TZ else make_naive(moment)


# Tasks


def variant(task: AnyTask, **changes: Any) -> AnyTask:
    """Copy a task with changed fields. Not validated: the backend's rules may have changed since the enqueue."""
    task_class: Any = type(task)
    copy: AnyTask = object.__new__(task_class)
    for name in _field_names(task_class):
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(task, name))
    return copy


@cache
def _field_names(task_class: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(task_class))


def stand_in(task_name: str, *, alias: str) -> AnyTask:
    """Make a task for a row whose task this process does not know, so that its result can be read. It cannot be run.

    A name in a row never causes an import.
    """

    def unknown(*_args: Any, **_kwargs: Any) -> Any:
        raise UnknownTask(f"No task is registered as {task_name!r} in this process.")

    module, _, function = task_name.rpartition(".")
    unknown.__module__, unknown.__name__, unknown.__qualname__ = module, function, function
    task = object.__new__(AnyTask)
    values = {"func": unknown, "priority": 0, "backend": alias, "queue_name": "", "run_after": None}
    task_class: Any = AnyTask
    for name in _field_names(task_class):
        object.__setattr__(task, name, values.get(name, False))
    return task

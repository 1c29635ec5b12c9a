"""What Django's words are in ours: a task's fields as columns of a job, and a job's columns as a task result.

Invariant: every translation of a name or a value stands here. A result made from a row is equal to any other made from
that row, in whatever process.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.timezone import make_naive

from ..exceptions import UnknownTask
from ..values.codec import decode, encode
from ..values.records import ClaimedJob, EncodedCall, JobSpec
from .framework import AnyResult, AnyTask, TaskResult, TaskResultDoesNotExist, TaskResultStatus, normalize_json
from .options import BackendOptions

if TYPE_CHECKING:
    from ..models import Job

STATUSES = {
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "discarded": TaskResultStatus.FAILED,
}
"""In any other status a job waits."""


def task_status(status: str) -> TaskResultStatus:
    """What Django calls the status of a job."""
    return STATUSES.get(status, TaskResultStatus.READY)


ALIAS, DEFERRED = "backend", "deferred"
"""The keys of a job's metadata: the alias it was enqueued on, and whether a `run_after` was given."""


# Enqueueing


def call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
    """The arguments of a job. Raises `TypeError` or `ValueError` for what JSON does not have."""
    return EncodedCall(encode("args", storable(list(args))), encode("kwargs", storable(dict(kwargs))), None)


def spec(task: AnyTask, options: BackendOptions, *, alias: str) -> JobSpec:
    """How jobs of the task are enqueued: as the task says, or else the `OPTIONS` of the alias."""
    own_attempts = getattr(task, "max_attempts", None)
    remembered = {
        ALIAS: alias,
        DEFERRED: task.run_after is not None,
    }
    kept = {status: time.total_seconds() for status, time in options.times_kept.items()}
    return JobSpec(
        task.module_path,
        queue_name=task.queue_name,
        priority=int(task.priority),
        max_attempts=options.max_attempts if own_attempts is None else own_attempts,
        run_after=task.run_after,
        timeout=options.timeout if getattr(task, "timeout", None) is None else None,
        retention=json.dumps(kept) if kept else None,
        metadata=json.dumps({key: value for key, value in remembered.items() if value}),
    )


def storable(value: Any) -> Any:
    """`value` as Django makes it fit for JSON (tuples become lists, bytes text), and as it comes back from a row."""
    return json.loads(json.dumps(normalize_json(value)))


# Results


def result_of(job: "Job", task: AnyTask) -> AnyResult:
    """The result that a row holds; `task` is the one that the row names."""
    from .attempts import Attempts

    attempts = Attempts(job)
    alias = job.metadata.get(ALIAS, task.backend)
    run_after = job.run_after if job.metadata.get(DEFERRED) else None
    result: AnyResult = AnyResult(
        task=variant(task, backend=alias, queue_name=job.queue_name, priority=job.priority, run_after=run_after),
        id=str(job.pk),
        status=task_status(job.status),
        enqueued_at=job.enqueued_at,
        started_at=attempts.started_at,
        last_attempted_at=attempts.last_attempted_at,
        finished_at=job.finished_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=alias,
        errors=attempts.errors,
        worker_ids=attempts.worker_ids,
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


RESULT_FIELDS = tuple(field.name for field in fields(AnyResult))


class UnreadResult(AnyResult):
    """A result as far as a worker knows it without a query; what else it is asked for is read from the row, once."""

    _database: str
    _attempt: int

    def __getattr__(self, name: str) -> Any:
        """Called for a field that has no value yet."""
        if name not in RESULT_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.read()
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        """Equal to the result that anybody else makes of the row."""
        if not isinstance(other, TaskResult):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in RESULT_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # as Django's own results, which are made of lists

    @property
    def attempts(self) -> int:
        """The number of this attempt, which the worker knows."""
        return len(self.worker_ids) if self._has("worker_ids") else self._attempt

    def read(self) -> None:
        """Fill in what is not known yet. One query."""
        from ..models import Job

        job = Job.objects.using(self._database).filter(pk=int(self.id)).first()
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
    """The result of a job that was claimed: its id, task, status and arguments, without a query."""
    result = UnreadResult.__new__(UnreadResult)
    vars(result).update(_database=database, _attempt=job.attempt)
    remembered = decode(job.metadata)
    alias = remembered.get(ALIAS, task.backend)
    run_after = _moment(job.run_after) if remembered.get(DEFERRED) else None
    known = {
        "task": variant(task, backend=alias, queue_name=job.queue_name, priority=job.priority, run_after=run_after),
        "id": str(job.id),
        "status": task_status(status),
        "args": decode(job.args),
        "kwargs": decode(job.kwargs),
        "backend": alias,
    }
    if status == "running":  # a row that is settled has the attempt's own start
        known["last_attempted_at"] = _moment(job.locked_at)
    for name, value in known.items():
        object.__setattr__(result, name, value)
    return result


def _moment(seconds: float) -> datetime:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else make_naive(moment)


# Tasks


def variant(task: AnyTask, **changes: Any) -> AnyTask:
    """A copy with other values, as the row has them: not validated, since what a backend allows may have changed."""
    task_class: Any = type(task)
    copy: AnyTask = object.__new__(task_class)
    for name in _field_names(task_class):
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(task, name))
    return copy


@cache
def _field_names(task_class: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(task_class))


def stand_in(task_name: str, *, alias: str) -> AnyTask:
    """For a row whose task this process does not know: everything about the result can be read, but nothing run.

    Nothing is imported because a row says so.
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

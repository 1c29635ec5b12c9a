"""Assertions about the jobs that code under test has deferred.

Invariant: an expectation that no job could ever meet, such as a misspelled argument, raises and never passes silently.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import Parameter
from typing import Any

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from ..conf import chosen_or_all
from ..console.arguments import redacted
from ..exceptions import InvalidArguments, InvalidTask, UnknownTask
from ..jobs.registry import registry
from ..jobs.task import Task
from ..models import Job
from ..values.codec import decode, encode
from ..values.records import JobSpec
from .capture import lines

CLOSE_TIMES = timedelta(seconds=1)
"""Times that differ by less count as equal: the code under test computes a time from another clock."""

NOT_GIVEN = object()


@dataclass(frozen=True)
class Expectation:
    """A task, some of its arguments, and some of the columns of its jobs."""

    name: str
    task: Task[Any, Any] | None
    """`None` if no task of this name is registered."""
    positional: tuple[Any, ...]
    """Arguments by position, of a task that is not registered."""
    arguments: Mapping[str, Any]
    columns: Mapping[str, Any]

    def __str__(self) -> str:
        """The task, and what is expected of its jobs."""
        shown = redacted(self.name, [], dict(self.arguments)).kwargs
        wanted = [*map(repr, self.positional), *(f"{name}={value!r}" for name, value in shown.items())]
        where = [f"{name}={value!r}" for name, value in self.columns.items()]
        with_them = f" with {', '.join(wanted)}" if wanted else ""
        return f"{self.name}{with_them}{' and ' if wanted and where else ' with ' if where else ''}{', '.join(where)}"

    def differences(self, job: Job) -> Iterator[str]:
        """The names of the arguments and columns in which a job of the task differs."""
        given: dict[Any, Any] = (
            {**dict(enumerate(job.args)), **job.kwargs} if self.task is None else _bound(self.task, job)
        )
        for name, value in [*enumerate(self.positional), *self.arguments.items()]:
            if not _is_same(self.task, str(name), value, given.get(name, NOT_GIVEN)):
                yield str(name)
        for name, value in self.columns.items():
            if not _is_column(job, name, value):
                yield name


@async_unsafe("assert_deferred() sends queries: in an async test, await aassert_deferred().")
def assert_deferred(
    task: Any,
    /,
    *args: Any,
    queue_name: str | None = None,
    run_after: datetime | timedelta | None = None,
    count: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    among: Iterable[Job] | None = None,
    database: str | None = None,
    **kwargs: Any,
) -> list[Job]:
    """Assert that a job of the task was deferred with these arguments. Returns the jobs that match.

    Only the given arguments are compared, by position or name, as the task would receive them, with its defaults.

    task: a task of `@job`, one of Django's `@task`, or the name of one. Options of `.using()` are expected of the job:
    `assert_deferred(send_receipt.using(priority=5), payment_id=42)`.
    queue_name, run_after: expected of the job. A timedelta counts from the time of the `.defer()`; times within a
    second count as equal.
    count: exactly this many jobs match; default: one or more.
    arguments: further arguments by name, for parameters that have the name of one of these options.
    among: look only at these jobs, such as the jobs of `capture_deferred`; default: at all jobs in the table, finished
    jobs included.
    database: the alias of the queue's database; default: `SKIPQUEUE["DATABASE"]`.

    Raises AssertionError with a list of what was deferred instead; `InvalidArguments` for arguments that the task does
    not have.
    """
    __tracebackhide__ = True
    options = {"queue_name": queue_name, "run_after": run_after, "count": count, "arguments": arguments}
    expected = expectation(task, args, kwargs, {**options, "among": among, "database": database})
    jobs = _jobs(among, database)
    found = [job for job in jobs if _is_expected(job, expected)]
    if (not found) if count is None else len(found) != count:
        raise AssertionError("\n".join([_failure(expected, len(found), count), *_instead(jobs, expected)]))
    return found


@async_unsafe("assert_not_deferred() sends queries: in an async test, await aassert_not_deferred().")
def assert_not_deferred(
    task: Any = None,
    /,
    *args: Any,
    queue_name: str | None = None,
    run_after: datetime | timedelta | None = None,
    arguments: Mapping[str, Any] | None = None,
    among: Iterable[Job] | None = None,
    database: str | None = None,
    **kwargs: Any,
) -> None:
    """Assert that no job of the task was deferred with these arguments; without a task: that no job was deferred.

    Arguments and options are those of `assert_deferred`. Raises AssertionError with the jobs that were deferred.
    """
    __tracebackhide__ = True
    jobs = _jobs(among, database)
    expected = None
    if task is not None:
        options = {"queue_name": queue_name, "run_after": run_after, "arguments": arguments}
        expected = expectation(task, args, kwargs, {**options, "among": among, "database": database})
        jobs = [job for job in jobs if _is_expected(job, expected)]
    if jobs:
        raise AssertionError("\n".join([f"{_counted(len(jobs), expected)} deferred:", *lines(jobs)]))


async def aassert_deferred(task: Any, /, *args: Any, **kwargs: Any) -> list[Job]:
    """`assert_deferred` for async tests."""
    return await sync_to_async(assert_deferred)(task, *args, **kwargs)


async def aassert_not_deferred(task: Any = None, /, *args: Any, **kwargs: Any) -> None:
    """`assert_not_deferred` for async tests."""
    await sync_to_async(assert_not_deferred)(task, *args, **kwargs)


def _jobs(among: Iterable[Job] | None, database: str | None) -> list[Job]:
    if among is not None:
        return list(among)
    return [job for alias in chosen_or_all(database) for job in Job.objects.using(alias).order_by("pk")]


def _is_expected(job: Job, expected: Expectation) -> bool:
    return job.task == expected.name and not any(expected.differences(job))


def _counted(number: int, expected: Expectation | None) -> str:
    jobs = "1 job" if number == 1 else f"{number} jobs"
    return f"{jobs}{f' of {expected}' if expected else ''} {'was' if number == 1 else 'were'}"


def _failure(expected: Expectation, found: int, count: int | None) -> str:
    if count is None:
        return f"No job of {expected} was deferred."
    return f"{_counted(found, expected)} deferred, not {count}."


def _instead(jobs: list[Job], expected: Expectation) -> list[str]:
    """Lines about the deferred jobs, first the jobs of the expected task, with the names in which they differ."""
    if not jobs:
        return ["No job was deferred at all."]
    same = [job for job in jobs if job.task == expected.name]
    others = [job for job in jobs if job.task != expected.name]
    notes = {job.pk: ", ".join(expected.differences(job)) for job in same}
    return ["Deferred were:", *lines([*same, *others], notes)]


def expectation(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> Expectation:
    """Make the expectation of an assertion with these options. `None` stands for an option that was not given.

    Raises `InvalidArguments` for arguments that the task does not have.
    """
    name, known = _identified(task)
    given = {name: value for name, value in options.items() if value is not None}
    arguments = given.get("arguments", {})
    columns = {name: given[name] for name in ("queue_name", "run_after") if name in given} | _changed(task, known)
    if known is None:
        return Expectation(name, None, tuple(args), {**kwargs, **arguments}, columns)
    _refuse_ambiguous(known, given)
    try:
        bound = known.signature.bind_partial(*args, **kwargs, **arguments).arguments
    except TypeError as error:
        raise InvalidArguments(f"{name}{known.signature}: {error}.") from None
    return Expectation(name, known, (), _by_name(known, bound), columns)


def _identified(task: Any) -> tuple[str, Task[Any, Any] | None]:
    """The name of a task, and its entry in the registry. Raises `InvalidTask` for an object that is no task."""
    name = task if isinstance(task, str) else getattr(task, "module_path", None) or getattr(task, "name", None)
    if not isinstance(name, str):
        raise InvalidTask(f"{task!r} is no task: give the function with @job or @task above it, or the task's name.")
    try:
        return name, registry.get(name)
    except UnknownTask:
        if isinstance(task, str):
            return name, None
        raise InvalidTask(
            f"{name} is not a task of this queue. If it is one of Django's: does TASKS have "
            "django_skipqueue.backend.SkipQueueBackend in the tests, too?"
        ) from None


def _changed(task: Any, known: Task[Any, Any] | None) -> dict[str, Any]:
    """The options that `.using()` has changed: `send_receipt.using(queue_name="bulk")` expects the queue `bulk`."""
    if known is None or isinstance(task, str):
        return {}
    own = known.options.spec(known.name)
    given = task.options.spec(known.name) if isinstance(task, Task) else task  # the options are fields of Django's task
    names = [name for name in JobSpec._fields if name not in ("task", "on_conflict")]
    changed = {name: getattr(given, name, None) for name in names}
    changed = {name: value for name, value in changed.items() if value not in (None, getattr(own, name))}
    for name in changed:
        if not hasattr(Job, name):
            raise InvalidArguments(f"{name} is no column of a job, so no assertion can expect it: leave it out.")
    return changed


def _refuse_ambiguous(task: Task[Any, Any], options: Mapping[str, Any]) -> None:
    for name in options:
        if name in task.signature.parameters:
            raise InvalidArguments(
                f"{name} is an option of the assertion, and also a parameter of {task.name}. For the parameter write "
                f"arguments={{{name!r}: …}}. For the option of a job write {task.__name__}.using({name}=…)."
            )


def _by_name(task: Task[Any, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(bound)
    for parameter in task.signature.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def _bound(task: Task[Any, Any], job: Job) -> dict[str, Any]:
    try:
        bound = task.signature.bind(*job.args, **job.kwargs)
    except TypeError:  # deferred by name, without the checks of `.defer()`
        return dict(job.kwargs)
    bound.apply_defaults()
    return _by_name(task, bound.arguments)


def _is_same(task: Task[Any, Any] | None, name: str, expected: Any, found: Any) -> bool:
    """Compare the expected value with the value in the row, also in its stored form: a tuple is stored as a list."""
    if found is NOT_GIVEN:
        return False
    if expected == found:
        return True
    stored = expected if task is None else task.encoded_argument(name, expected)
    return bool(decode(encode(name, stored)) == (list(found) if isinstance(found, tuple) else found))


def _is_column(job: Job, name: str, expected: Any) -> bool:
    if name != "run_after":
        return bool(getattr(job, name) == expected)
    due = job.enqueued_at + expected if isinstance(expected, timedelta) else expected
    if not isinstance(due, datetime):
        raise InvalidArguments(f"run_after is a datetime or a timedelta, not {expected!r}.")
    return abs(job.run_after - due) < CLOSE_TIMES

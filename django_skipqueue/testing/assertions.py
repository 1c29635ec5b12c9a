"""Assertions about the jobs that the code under test has deferred.

An expectation that no job could ever meet, such as a misspelled argument, raises an error. It never passes silently.
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
"""Times that differ by less count as equal, because the code under test takes the time from another clock."""

NOT_GIVEN = object()


@dataclass(frozen=True)
class Expectation:
    """What an assertion expects of a job: its task, some of its arguments, and some of its columns."""

    name: str
    task: Task[Any, Any] | None
    """`None` if no task of this name is registered."""
    positional: tuple[Any, ...]
    """The expected positional arguments, if the task is not registered. Otherwise all are in `arguments`, by name."""
    arguments: Mapping[str, Any]
    columns: Mapping[str, Any]

    def __str__(self) -> str:
        """Describe the expectation in the message of a failed assertion."""
        shown = redacted(self.name, [], dict(self.arguments)).kwargs
        arguments = [*map(repr, self.positional), *(f"{name}={value!r}" for name, value in shown.items())]
        columns = [f"{name}={value!r}" for name, value in self.columns.items()]
        with_arguments = f" with {', '.join(arguments)}" if arguments else ""
        conjunction = "and" if arguments else "with"
        with_columns = f" {conjunction} {', '.join(columns)}" if columns else ""
        return f"{self.name}{with_arguments}{with_columns}"

    def differences(self, job: Job) -> Iterator[str]:
        """The names of the arguments and columns in which this job of the task differs from the expectation."""
        actual_arguments: dict[Any, Any] = (
            {**dict(enumerate(job.args)), **job.kwargs} if self.task is None else _bound(self.task, job)
        )
        for name, value in [*enumerate(self.positional), *self.arguments.items()]:
            if not _is_same(self.task, str(name), value, actual_arguments.get(name, NOT_GIVEN)):
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

    Only the arguments that are given here are compared. A job's arguments include the defaults of the task's
    parameters.

    task: a task made by `@job` or by Django's `@task`, or a task's name. The job must have the options of `.using()`:
    `assert_deferred(send_receipt.using(priority=5), payment_id=42)`.
    queue_name, run_after: the job must have this value. A timedelta counts from the time of the `.defer()`. Times that
    differ by less than a second count as equal.
    count: exactly this many jobs must match; default: one or more.
    arguments: more expected arguments by name, for parameters that have the same name as one of these options.
    among: consider only these jobs, such as the jobs of `capture_deferred`; default: all jobs in the table, even
    finished ones.
    database: the alias of the queue's database; default: `SKIPQUEUE["DATABASE"]`.

    Raises AssertionError with a list of the jobs that were deferred instead, and `InvalidArguments` for arguments that
    the task does not have.
    """
    __tracebackhide__ = True
    options = {"queue_name": queue_name, "run_after": run_after, "count": count, "arguments": arguments}
    expected = expectation(task, args, kwargs, {**options, "among": among, "database": database})
    jobs = _jobs(among, database)
    matching = [job for job in jobs if _is_expected(job, expected)]
    has_failed = not matching if count is None else len(matching) != count
    if has_failed:
        raise AssertionError("\n".join([_failure(expected, len(matching), count), *_deferred_instead(jobs, expected)]))
    return matching


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
    """Assert that no job of the task was deferred with these arguments, or, without a task, that no job was deferred.

    Takes the same arguments and options as `assert_deferred`. Raises AssertionError with the jobs that were deferred.
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


def _counted(count: int, expected: Expectation | None) -> str:
    jobs = "1 job" if count == 1 else f"{count} jobs"
    return f"{jobs}{f' of {expected}' if expected else ''} {'was' if count == 1 else 'were'}"


def _failure(expected: Expectation, matching: int, count: int | None) -> str:
    if count is None:
        return f"No job of {expected} was deferred."
    return f"{_counted(matching, expected)} deferred, not {count}."


def _deferred_instead(jobs: list[Job], expected: Expectation) -> list[str]:
    """A line about each deferred job. Jobs of the expected task come first, with the names in which they differ."""
    if not jobs:
        return ["No job was deferred at all."]
    of_task = [job for job in jobs if job.task == expected.name]
    others = [job for job in jobs if job.task != expected.name]
    differences = {job.pk: ", ".join(expected.differences(job)) for job in of_task}
    return ["Deferred were:", *lines([*of_task, *others], differences)]


def expectation(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> Expectation:
    """Make the expectation of an assertion that was called with these options. An option with `None` was not given.

    Raises `InvalidArguments` for arguments that the task does not have.
    """
    name, registered_task = _identified(task)
    given_options = {name: value for name, value in options.items() if value is not None}
    arguments = given_options.get("arguments", {})
    columns: dict[str, Any] = {
        name: given_options[name] for name in ("queue_name", "run_after") if name in given_options
    }
    columns |= _changed(task, registered_task)
    if registered_task is None:
        return Expectation(name, None, tuple(args), {**kwargs, **arguments}, columns)
    _refuse_ambiguous(registered_task, given_options)
    try:
        bound = registered_task.signature.bind_partial(*args, **kwargs, **arguments).arguments
    except TypeError as error:
        raise InvalidArguments(f"{name}{registered_task.signature}: {error}.") from None
    return Expectation(name, registered_task, (), _by_name(registered_task, bound), columns)


def _identified(task: Any) -> tuple[str, Task[Any, Any] | None]:
    """A task's name, and the task if it is registered. Raises `InvalidTask` for an object that is not a task."""
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


def _changed(task: Any, registered_task: Task[Any, Any] | None) -> dict[str, Any]:
    """The options that `.using()` changed, because `send_receipt.using(queue_name="bulk")` expects the queue `bulk`."""
    if registered_task is None or isinstance(task, str):
        return {}
    original = registered_task.options.spec(registered_task.name)
    # A task of Django has the options as fields.
    changed_spec = task.options.spec(registered_task.name) if isinstance(task, Task) else task
    names = [name for name in JobSpec._fields if name not in ("task", "on_conflict")]
    values = {name: getattr(changed_spec, name, None) for name in names}
    changed = {name: value for name, value in values.items() if value not in (None, getattr(original, name))}
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
    by_name = dict(bound)
    for parameter in task.signature.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            by_name |= by_name.pop(parameter.name, {})
    return by_name


def _bound(task: Task[Any, Any], job: Job) -> dict[str, Any]:
    try:
        bound = task.signature.bind(*job.args, **job.kwargs)
    except TypeError:  # the job was deferred by the task's name, so nothing has checked its arguments
        return dict(job.kwargs)
    bound.apply_defaults()
    return _by_name(task, bound.arguments)


def _is_same(task: Task[Any, Any] | None, name: str, expected: Any, actual: Any) -> bool:
    """Compare the expected value with the actual value, both as JSON. So a tuple equals the list that is stored."""
    if actual is NOT_GIVEN:
        return False
    if expected == actual:
        return True
    json_value = expected if task is None else task.encoded_argument(name, expected)
    expected_in_row = decode(encode(name, json_value))  # as if the value had been stored and read again
    actual_in_row = list(actual) if isinstance(actual, tuple) else actual  # `bind` collects `*args` in a tuple
    return bool(expected_in_row == actual_in_row)


def _is_column(job: Job, name: str, expected: Any) -> bool:
    if name != "run_after":
        return bool(getattr(job, name) == expected)
    expected_time = job.enqueued_at + expected if isinstance(expected, timedelta) else expected
    if not isinstance(expected_time, datetime):
        raise InvalidArguments(f"run_after is a datetime or a timedelta, not {expected!r}.")
    return abs(job.run_after - expected_time) < CLOSE_TIMES

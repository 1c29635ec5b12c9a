"""Decides whether a job is the one that an assertion expects.

Invariant: an expectation that no job could ever meet, such as a misspelled argument, raises and never passes silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import Parameter
from typing import Any

from ..console.arguments import redacted
from ..exceptions import InvalidArguments, InvalidTask, UnknownTask
from ..jobs.registry import registry
from ..jobs.task import Task
from ..models import Job
from ..values.codec import decode, encode
from ..values.records import JobSpec

CLOSE = timedelta(seconds=1)
"""Times that differ by less than this are taken for the same: code computes them from a clock of its own."""

MISSING = object()


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
        """The task, and what is expected of it."""
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
            if not _is_same(self.task, str(name), value, given.get(name, MISSING)):
                yield str(name)
        for name, value in self.columns.items():
            if not _is_column(job, name, value):
                yield name


def expectation(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> Expectation:
    """Make the expectation of an assertion with these options; `None` is one that was not given.

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
    """The options that `.using()` has changed: `send_receipt.using(queue_name="bulk")` expects that queue."""
    if known is None or isinstance(task, str):
        return {}
    own = known.options.spec(known.name)
    given = task.options.spec(known.name) if isinstance(task, Task) else task  # Django's task has them as fields
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
    """Compare with the value in the row, also as that would store what is expected: a tuple as a list."""
    if found is MISSING:
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
    return abs(job.run_after - due) < CLOSE

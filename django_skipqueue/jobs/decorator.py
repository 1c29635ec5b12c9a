"""The decorators `@job`, which makes a task of a function, and `@with_options`, which gives options to a Django task.

`@job` raises at import if a worker could not find the function, or could not run it with these options. `@with_options`
checks its options at import, and stores them on the function, where our backend for `django.tasks` reads them.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from ..conf import own_retention_problems
from ..exceptions import InvalidOption, InvalidTask
from ..values.backoff import Backoff, RetryPolicy, check_backoff
from ..values.redaction import words
from .advice import check_names
from .context import JobContext
from .options import Options, RunOptions, TaskOptions, retention_column
from .registry import registry
from .task import ContextTask, Task, yields

NOT_FROM_A_FILE = ("<stdin>", "<console>", "<string>")
"""The file names that Python gives to code which is not in a file."""

P = ParamSpec("P")
R = TypeVar("R")


@overload
def job(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def job(
    *, takes_context: Literal[False] = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
@overload
def job(
    *, takes_context: Literal[True], **options: Unpack[TaskOptions]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], ContextTask[P, R]]: ...
def job(
    function: Callable[..., Any] | None = None, /, *, takes_context: bool = False, **options: Unpack[TaskOptions]
) -> Any:
    """Register a function, `def` or `async def`, as a task. Use it as `@job`, or with options as `@job(…)`.

    name: the task's name in rows and logs; default `module.qualname`. Set it if the function may move to another
    module.
    queue_name, priority (-100…100, higher first), max_attempts: for the task's jobs, unless `.using()` changes them.
    unique_key, unique: the key of a job, or how `unique_by` makes it. At most one job holds a key at a time.
    until: how long a job holds its key, which is until it is "finished" or "started", or for at least a timedelta.
    on_conflict: what happens if another job holds the key. "skip" returns that job. "replace" gives it the arguments
    and the due time of the call, if it is waiting. "raise" raises `UniqueKeyTaken`. "rerun" runs the task once more
    after it.
    backoff: a function that takes the number of a failed attempt, and returns how many seconds to wait; default
    `backoff.exponential()`.
    retry_on: only these exceptions are retried, and others fail the job at once; default: all except `RowMissing`.
    discard_on: these exceptions discard the job at once.
    timeout: seconds after which an attempt is interrupted by `JobTimeout`, and fails.
    atomic: the function and its outcome share one transaction on the queue's database. Only for `def` functions.
    redact: names of arguments, at any depth, whose values the admin and the log mask, in addition to `password`,
    `token` and similar names.
    concurrency: how many jobs with the same key may run at once, such as `limit(2, by="account_id")`.
    sequence: jobs with the same key run one after another, such as `by("order_id")`.
    fair_by: one or several arguments that name a tenant. Many jobs of one tenant then do not keep the jobs of another
    tenant waiting. A task has only one of `concurrency`, `sequence` and `fair_by`.
    rate: how many jobs with the same key may start in a period, such as `rate("100/m", by="tenant")`.
    retention: how long finished jobs are kept, by status, if this is shorter than `SKIPQUEUE["RETENTION"]`, such as
    `retention={"completed": timedelta(minutes=10)}`.
    database: the alias of the database for the task's jobs, instead of the database that the settings choose.
    shard_by: with the placement `spread`, jobs with equal values of these arguments are in the same database.
    takes_context: the function takes a `JobContext` before its own arguments.

    Raises `InvalidTask` for a function that a worker could not find again, and `InvalidOption` for a value that is not
    valid.
    """
    check_names("job", options, {*TaskOptions.__annotations__, "takes_context"})
    checked_options = checked(options)
    _check_types(name=options.get("name"), atomic=options.get("atomic", False), takes_context=takes_context)

    def register(function: Callable[..., Any]) -> Task[Any, Any]:
        _check_function(function)
        if options.get("atomic") and inspect.iscoroutinefunction(function):
            raise InvalidTask(
                f"{function.__module__}.{function.__qualname__} is an async def, and Django has no async transactions. "
                "Make it a def, or put what belongs together into one that it calls with sync_to_async."
            )
        task_class = ContextTask if takes_context else Task
        task: Task[Any, Any] = task_class(
            function,
            name=options.get("name") or f"{function.__module__}.{function.__qualname__}",
            # The timeout is not stored in the row, so that a change of it also applies to jobs that are already queued.
            options=replace(checked_options.options, timeout=None),
            timeout=checked_options.options.timeout,
            policy=checked_options.policy,
            takes_context=takes_context,
            atomic=options.get("atomic", False),
            redact=checked_options.redact,
        )
        registry.register(task)
        return task

    return register if function is None else register(function)


def _check_types(*, name: object, **flags: object) -> None:
    if not isinstance(name, str | None):
        raise InvalidOption(f"name must be a str, not {name!r}.")
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidOption(f"{option} must be True or False, not {value!r}.")


def _check_function(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise InvalidTask(
            f"@job takes a function, not {function!r}. Put it below decorators that return something else."
        )
    if options_given_to(function) is not None:
        raise InvalidTask(
            f"{function.__module__}.{function.__qualname__} has @with_options, which is for Django's @task. "
            "Give @job the options themselves."
        )
    if function.__module__ in (None, "__main__") or inspect.unwrap(function).__code__.co_filename in NOT_FROM_A_FILE:
        raise InvalidTask(
            f"{function.__qualname__} is in __main__ or was typed into a shell, so a worker could not find it. "
            "Put the function into a module that can be imported: the jobs.py of an installed app."
        )
    if function.__qualname__ != function.__name__ or function.__name__ == "<lambda>":
        raise InvalidTask(
            f"{function.__module__}.{function.__qualname__} is not at module level, so a worker could not find it. "
            "Move the function to the top level of its module."
        )
    if yields(function):
        raise InvalidTask(
            f"{function.__module__}.{function.__qualname__} yields, so calling it would run nothing of it. "
            "Put the loop over it into a function that is the task."
        )


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The checked options of `@job` or `@with_options`."""

    options: Options = field(default_factory=Options)
    backoff: Backoff | None = None
    """`None` means the default backoff."""
    retry_on: tuple[type[BaseException], ...] | None = None
    discard_on: tuple[type[BaseException], ...] = ()
    redact: tuple[str, ...] = ()

    @property
    def policy(self) -> RetryPolicy:
        """The policy that decides the outcome when the task raises an exception."""
        policy = RetryPolicy(retry_on=self.retry_on, discard_on=self.discard_on)
        return policy if self.backoff is None else replace(policy, backoff=self.backoff)


def checked(options: RunOptions) -> CheckedOptions:
    """Check the options of a decorator. Raises `InvalidOption` for a value that is not valid."""
    backoff = options.get("backoff")
    if backoff is not None:
        check_backoff(backoff)
    values: dict[str, Any] = dict(options)
    if "retention" in values:
        for problem in own_retention_problems("retention", values["retention"]):
            raise InvalidOption(problem)
        values["retention"] = retention_column(values["retention"])
    return CheckedOptions(
        Options().changed(values),
        backoff=backoff,
        retry_on=_exceptions("retry_on", options.get("retry_on")),
        discard_on=_exceptions("discard_on", options.get("discard_on")) or (),
        redact=_names_to_redact(options.get("redact", ())),
    )


def _exceptions(option: str, classes: Any) -> tuple[type[BaseException], ...] | None:
    """Return the value of `retry_on` or `discard_on` as a tuple. It may be a single class."""
    if classes is None:
        return None
    listed = classes if isinstance(classes, tuple | list) else (classes,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in listed):
        raise InvalidOption(f"{option} must be a tuple of exception classes, not {classes!r}.")
    return tuple(listed)


def _names_to_redact(names: Any) -> tuple[str, ...]:
    """Return the value of `redact` as a tuple. It may be a single name."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, tuple | list) or not all(isinstance(name, str) and words(name) for name in listed):
        raise InvalidOption(f"redact must be a tuple of names of arguments, not {names!r}.")
    return tuple(listed)


ATTRIBUTE = "_skipqueue_options"
"""The attribute of a function in which `with_options` stores the options."""

DJANGO_OPTIONS = ("queue_name", "priority")
"""The options that Django's `@task` accepts itself."""

F = TypeVar("F", bound=Callable[..., Any])


def with_options(**options: Unpack[RunOptions]) -> Callable[[F], F]:
    """Give options of `@job` to a Django task: write `@task`, and below it `@with_options(timeout=30)`.

    Accepts all options of `.using()` and of `@job`, except `queue_name` and `priority`, which `@task` accepts itself;
    `run_after` and `database`, which belong to a call and to a backend; and `name`, `atomic` and `takes_context`.

    Only the backend of this package reads the options. On Django 6.1, an option that is also given to `@task` or
    `.using()` takes precedence.

    Raises `InvalidOption` for a value that is not valid, and `InvalidTask` for an object that is not a function,
    because `@with_options` must be below `@task`.
    """
    check_names("with_options", options, RunOptions.__annotations__)
    for name in DJANGO_OPTIONS:
        if name in options:
            raise InvalidOption(f"Give {name} to @task itself: @task({name}=…).")
    checked_options = checked(options)

    def store_options(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidTask(
                f"@with_options takes a function, not {function!r}. Put it below @task, next to the function; "
                "give @job the options themselves."
            )
        if hasattr(function, ATTRIBUTE):
            raise InvalidTask(f"{function.__qualname__} has two @with_options. Put all options into one.")
        setattr(function, ATTRIBUTE, checked_options)
        return function

    return store_options


def options_given_to(function: Callable[..., Any]) -> CheckedOptions | None:
    """The options that `with_options` has stored on this function; `None` if there are none."""
    given: CheckedOptions | None = getattr(function, ATTRIBUTE, None)
    return given

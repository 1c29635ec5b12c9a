"""`@job` makes a task out of a function, and registers it. `@with_options` gives the options to a task of Django's.

Invariant: `@job` raises at import if a worker could not find the function, or could not run it with these options. The
options of `@with_options` are checked at import, and kept on the function, where a backend may read them.
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
"""The file names that Python gives to code that is not in a file."""

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
    """Register a function, `def` or `async def`, as a task. Bare, or with options.

    name: the task's name in rows and logs; default `module.qualname`. Set it if the function may move.
    queue_name, priority (-100…100, higher first), max_attempts: for its jobs, unless `.using()` says otherwise.
    unique_key, or unique, made by `unique_by`: at most one job holds a key at a time.
    until: how long: "finished", "started", or a timedelta from the enqueue, and until it is finished.
    on_conflict: if a job holds the key: "skip" returns it, "replace" gives it the arguments and the due time of the
    call if it waits, "raise" raises `UniqueKeyTaken`, "rerun" has one more run after the job that runs.
    backoff: from the number of the failed attempt to seconds; default `backoff.exponential()`.
    retry_on: only these exceptions are retried, others fail the job at once; default: all but `RowMissing`.
    discard_on: these discard the job at once.
    timeout: seconds after which an attempt is interrupted by `JobTimeout`, and fails.
    atomic: the function and its outcome share one transaction on the queue's database; `def` only.
    redact: names of arguments, at any depth, whose values the admin and the log mask, beside `password`, `token` and
    their like.
    concurrency: how many of its jobs of a key may run at once: `limit(2, by="account_id")`.
    sequence: its jobs run one after the other for each key: `by("order_id")`.
    fair_by: the jobs of one tenant do not keep those of another waiting: `fair_by="tenant"` names the argument, or the
    arguments. A job has one of these three.
    rate: how many of its jobs of a key may start in a time: `rate("100/m", by="tenant")`.
    retention: how long its finished jobs are kept, by status, where that is shorter than `SKIPQUEUE["RETENTION"]`:
    `retention={"completed": timedelta(minutes=10)}`.
    database: the alias of the database for its jobs, in place of what `SKIPQUEUE["PLACEMENT"]` chooses, or `DATABASE`.
    shard_by: under the placement `spread`, jobs whose values of these arguments are equal are in the same database.
    takes_context: the function takes a `JobContext` before its own arguments.

    Raises `InvalidTask` for a function that a worker could not find again, `InvalidOption` for a value that cannot be
    used.
    """
    check_names("job", options, {*TaskOptions.__annotations__, "takes_context"})
    given = checked(options)
    _check_types(name=options.get("name"), atomic=options.get("atomic", False), takes_context=takes_context)

    def register(function: Callable[..., Any]) -> Task[Any, Any]:
        _check_function(function)
        if options.get("atomic") and inspect.iscoroutinefunction(function):
            raise InvalidTask(
                f"{function.__module__}.{function.__qualname__} is an async def, and Django has no async transactions. "
                "Make it a def, or put what belongs together into one that it calls with sync_to_async."
            )
        kind = ContextTask if takes_context else Task
        task: Task[Any, Any] = kind(
            function,
            name=options.get("name") or f"{function.__module__}.{function.__qualname__}",
            # The timeout is not stored in the row, so that a changed one also applies to jobs already queued.
            options=replace(given.options, timeout=None),
            timeout=given.options.timeout,
            policy=given.policy,
            takes_context=takes_context,
            atomic=options.get("atomic", False),
            redact=given.redact,
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
class Given:
    """The checked options of a decorator, for the jobs of a task and for their attempts."""

    options: Options = field(default_factory=Options)
    backoff: Backoff | None = None
    """`None`: not given."""
    retry_on: tuple[type[BaseException], ...] | None = None
    discard_on: tuple[type[BaseException], ...] = ()
    redact: tuple[str, ...] = ()

    @property
    def policy(self) -> RetryPolicy:
        """The policy that decides the outcome of an exception."""
        policy = RetryPolicy(retry_on=self.retry_on, discard_on=self.discard_on)
        return policy if self.backoff is None else replace(policy, backoff=self.backoff)


def checked(options: RunOptions) -> Given:
    """Check the options. Raises `InvalidOption` for a value that cannot be used."""
    backoff = options.get("backoff")
    if backoff is not None:
        check_backoff(backoff)
    own: dict[str, Any] = dict(options)
    if "retention" in own:
        for problem in own_retention_problems("retention", own["retention"]):
            raise InvalidOption(problem)
        own["retention"] = retention_column(own["retention"])
    return Given(
        Options().changed(own),
        backoff=backoff,
        retry_on=_exceptions("retry_on", options.get("retry_on")),
        discard_on=_exceptions("discard_on", options.get("discard_on")) or (),
        redact=_names_to_redact(options.get("redact", ())),
    )


def _exceptions(option: str, classes: Any) -> tuple[type[BaseException], ...] | None:
    """`retry_on` or `discard_on` as a tuple. A single class is allowed too."""
    if classes is None:
        return None
    listed = classes if isinstance(classes, tuple | list) else (classes,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in listed):
        raise InvalidOption(f"{option} must be a tuple of exception classes, not {classes!r}.")
    return tuple(listed)


def _names_to_redact(names: Any) -> tuple[str, ...]:
    """`redact` as a tuple. A single name is allowed too."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, tuple | list) or not all(isinstance(name, str) and words(name) for name in listed):
        raise InvalidOption(f"redact must be a tuple of names of arguments, not {names!r}.")
    return tuple(listed)


ATTRIBUTE = "_skipqueue_options"
"""The attribute of the function that has its options."""

DJANGO_OPTIONS = ("queue_name", "priority")
"""The options that Django's `@task` takes itself."""

F = TypeVar("F", bound=Callable[..., Any])


def with_options(**options: Unpack[RunOptions]) -> Callable[[F], F]:
    """Give a task of Django's the options that `@job` has: `@task` above `@with_options(timeout=30)`.

    Takes every option of `.using()` and of `@job` but these: `queue_name` and `priority`, which `@task` takes itself;
    `run_after` and `database`, which belong to a call and to a backend; `name`, `atomic` and `takes_context`.

    The backend of this package reads the options; another backend does not. On Django 6.1, an option that `@task` or
    `.using()` has as well takes precedence.

    Raises `InvalidOption` for a value that cannot be used, and `InvalidTask` for an object that is not a function: put
    `@with_options` below `@task`; `@job` takes the options itself.
    """
    check_names("with_options", options, RunOptions.__annotations__)
    for name in DJANGO_OPTIONS:
        if name in options:
            raise InvalidOption(f"Give {name} to @task itself: @task({name}=…).")
    given = checked(options)

    def keep(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidTask(
                f"@with_options takes a function, not {function!r}. Put it below @task, next to the function; "
                "give @job the options themselves."
            )
        if hasattr(function, ATTRIBUTE):
            raise InvalidTask(f"{function.__qualname__} has two @with_options. Put all options into one.")
        setattr(function, ATTRIBUTE, given)
        return function

    return keep


def options_given_to(function: Callable[..., Any]) -> Given | None:
    """The options that `with_options` has kept on this function; `None` if it has none."""
    found: Given | None = getattr(function, ATTRIBUTE, None)
    return found

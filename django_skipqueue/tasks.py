"""`@job` makes a task out of a function; `Task.defer` makes a job out of a call.

Invariant: what cannot run (a wrong name, a missing argument, a value that is not JSON) is refused at the call, before
anything is written.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async

from .backoff import Backoff
from .context import JobContext
from .exceptions import InvalidArguments, InvalidOption, InvalidTask
from .options import Options, UniqueKey, check_key, check_size
from .outcomes import RetryPolicy
from .payload import encode
from .records import Call, ClaimedJob
from .registry import Registry, tasks

if TYPE_CHECKING:
    from .managers import JobQuerySet
    from .models import Job

__all__ = ["ContextTask", "Options", "Registry", "Task", "UniqueKey", "job", "tasks"]

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function registered with `@job`. Calling it calls the function; `.defer()` makes a job of the call."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        name: str,
        options: Options,
        policy: RetryPolicy,
        takes_context: bool,
        timeout: float | None = None,
        atomic: bool = False,
    ) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.policy = policy
        self.timeout = timeout
        self.atomic = atomic
        self.takes_context = takes_context
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = _signature(function, takes_context)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, as if it were not a task."""
        return self.function(*args, **kwargs)

    def defer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """Insert a job in the caller's transaction, and return it.

        Raises `InvalidArguments`, and writes nothing, if the arguments do not fit the task or are not JSON. If
        `unique_key` is held by a job that is not finished, returns that job, with `job.created` False.
        """
        call = self._call(args, kwargs)
        return self._queue().enqueue(self.name, **call._asdict(), **self._columns())

    async def adefer(self, *args: P.args, **kwargs: P.kwargs) -> "Job":
        """`defer` for async code."""
        return await sync_to_async(self.defer)(*args, **kwargs)

    def defer_many(self, calls: Sequence[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """Insert a job for each of `calls`, in one round trip, and return their ids in the same order.

        Each call is a dict of keyword arguments, or a tuple or list of positional ones. All are checked before the
        first is written. A `unique_key` that is a function gets each call's arguments.
        """
        prepared = [self._call(*_split(call, position), position) for position, call in enumerate(calls)]
        return self._queue().enqueue_many(self.name, prepared, **self._columns())

    async def adefer_many(self, calls: Sequence[Mapping[str, Any] | Sequence[Any]]) -> list[int]:
        """`defer_many` for async code."""
        return await sync_to_async(self.defer_many)(calls)

    def using(
        self,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        run_after: datetime | timedelta | None = None,
        max_attempts: int | None = None,
        unique_key: UniqueKey | None = None,
        timeout: float | None = None,
        database: str | None = None,
    ) -> "Task[P, R]":
        """The same task with other options: `send_receipt.using(priority=5).defer(payment_id=1)`.

        A `run_after` that is a timedelta counts from the database's clock at the `.defer()`. `unique_key` may be a
        function of the task's arguments. Raises `InvalidOption` for a value that cannot be used.
        """
        given: dict[str, Any] = {
            "queue_name": queue_name,
            "priority": priority,
            "run_after": run_after,
            "max_attempts": max_attempts,
            "unique_key": unique_key,
            "timeout": timeout,
            "database": database,
        }
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.options = replace(self.options, **{name: value for name, value in given.items() if value is not None})
        return other

    # What the executor asks of a task; a surface that brings tasks of its own may answer in its own way.

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """What a task with `takes_context` gets as its first argument."""
        return context

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """What is done about an exception of this job's."""
        return self.policy

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any], position: int | None = None) -> "Call":
        """Check one call against the signature and as JSON."""
        where = "" if position is None else f"call {position}: "
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{where}{self.name}{self.signature}: {error}.") from None
        unique_key = self.options.unique_key
        if callable(unique_key):
            unique_key = unique_key(*args, **kwargs)
            if not isinstance(unique_key, str):
                raise InvalidOption(f"{where}unique_key's function must make a text, not {unique_key!r}.")
            check_key("unique_key", unique_key)
        names = _positional_names(bound, len(args))
        encoded = [encode(f"{where}{name}", value) for name, value in zip(names, args, strict=True)]
        pairs = [
            f"{encode(f'the name {key!r}', key)}:{encode(f'{where}{key}', value)}" for key, value in kwargs.items()
        ]
        return check_size(Call(f"[{','.join(encoded)}]", f"{{{','.join(pairs)}}}", unique_key), where)

    def _columns(self) -> dict[str, Any]:
        options = self.options
        return {
            "queue_name": options.queue_name,
            "priority": options.priority,
            "max_attempts": options.max_attempts,
            "run_after": options.run_after,
            "metadata": None if options.timeout is None else {"timeout": options.timeout},
        }

    def _queue(self) -> "JobQuerySet":
        from .models import Job

        tasks.check_unique(self)
        database = self.options.database
        return Job.objects.using(database) if database else Job.objects.all()


class ContextTask(Task[P, R]):
    """A task whose function takes a `JobContext` first. Deferring leaves it out; calling the function passes it."""

    def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Run the function here and now, with a context of the caller's."""
        return self.function(context, *args, **kwargs)


@overload
def job(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    retry_on: tuple[type[BaseException], ...] | None = None,
    discard_on: tuple[type[BaseException], ...] = (),
    unique_key: UniqueKey | None = None,
    timeout: float | None = None,
    atomic: bool = False,
    takes_context: Literal[False] = False,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
@overload
def job(
    *,
    name: str | None = None,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    retry_on: tuple[type[BaseException], ...] | None = None,
    discard_on: tuple[type[BaseException], ...] = (),
    unique_key: UniqueKey | None = None,
    timeout: float | None = None,
    atomic: bool = False,
    takes_context: Literal[True],
) -> Callable[[Callable[Concatenate[JobContext, P], R]], ContextTask[P, R]]: ...
def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    retry_on: tuple[type[BaseException], ...] | None = None,
    discard_on: tuple[type[BaseException], ...] = (),
    unique_key: UniqueKey | None = None,
    timeout: float | None = None,
    atomic: bool = False,
    takes_context: bool = False,
) -> Any:
    """Register a function, `def` or `async def`, as a task. Bare, or with options.

    name: what rows and logs call the task; default `module.qualname`. Give one if the function may move.
    queue_name, priority (-100…100, higher first), max_attempts, unique_key: for its jobs, unless `.using()` says
    otherwise.
    backoff: from the number of the failed attempt to seconds; default `backoff.exponential()`.
    retry_on: only these exceptions are retried, others fail the job at once; default: all are.
    discard_on: these discard the job at once.
    timeout: seconds after which an attempt is interrupted by `JobTimeout`, and fails.
    atomic: the function and its outcome share one transaction on the queue's database; `def` only.
    takes_context: the function takes a `JobContext` before its own arguments.

    Raises `InvalidTask` for a function that a worker could not find again, `InvalidOption` for a value that cannot be
    used.
    """

    def register(function: Callable[..., Any]) -> Task[Any, Any]:
        _check_function(function)
        if atomic and inspect.iscoroutinefunction(function):
            raise InvalidTask(
                f"{function.__module__}.{function.__qualname__} is an async def, and Django has no async transactions. "
                "Make it a def, or put what belongs together into one that it calls with sync_to_async."
            )
        kind = ContextTask if takes_context else Task
        policy = RetryPolicy(
            retry_on=_exceptions("retry_on", retry_on), discard_on=_exceptions("discard_on", discard_on) or ()
        )
        task: Task[Any, Any] = kind(
            function,
            name=name or f"{function.__module__}.{function.__qualname__}",
            options=Options(queue_name=queue_name, priority=priority, max_attempts=max_attempts, unique_key=unique_key),
            policy=replace(policy, backoff=backoff) if backoff else policy,
            takes_context=takes_context,
            timeout=Options(timeout=timeout).timeout,
            atomic=atomic,
        )
        tasks.register(task)
        return task

    return register if function is None else register(function)


def _check_function(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise InvalidTask(
            f"@job takes a function, not {function!r}. Put it below decorators that return something else."
        )
    if function.__qualname__ != function.__name__ or function.__name__ == "<lambda>":
        raise InvalidTask(
            f"{function.__module__}.{function.__qualname__} is not at module level, so a worker could not find it. "
            "Move the function to the top level of its module."
        )


def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """What `.defer()` takes: the function's parameters, less the context."""
    signature = inspect.signature(function)
    if not takes_context:
        return signature
    first, *others = signature.parameters.values() or [None]
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidTask(
            f"{function.__qualname__} has takes_context=True, so its first parameter must be the context."
        )
    return signature.replace(parameters=[other for other in others if other is not None])


def _positional_names(bound: inspect.BoundArguments, count: int) -> list[str]:
    """The names that errors give to the first `count` arguments: of the parameter, or `rest[2]` within `*rest`."""
    names: list[str] = []
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{position}]" for position in range(count - len(names))]
        elif len(names) < count:
            names.append(parameter.name)
    return names


def _split(call: Mapping[str, Any] | Sequence[Any], position: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """One item of `defer_many` as positional and keyword arguments."""
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, list | tuple):
        return call, {}
    raise InvalidArguments(
        f"call {position} must be a dict of keyword arguments or a tuple of positional ones, not {call!r}."
    )


def _exceptions(option: str, classes: Any) -> tuple[type[BaseException], ...] | None:
    """`retry_on` and `discard_on` as a tuple; one class alone is taken as well."""
    if classes is None:
        return None
    listed = classes if isinstance(classes, tuple | list) else (classes,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in listed):
        raise InvalidOption(f"{option} must be a tuple of exception classes, not {classes!r}.")
    return tuple(listed)

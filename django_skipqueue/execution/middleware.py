"""The middleware around each attempt: context managers, the first of them outermost.

Invariant: an exception of the task passes through the managers from the innermost outwards, as with nested `with`
statements. If a manager replaces the exception, the new one decides the outcome.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..conf import settings
from ..tasks.task import Task
from ..values.outcomes import COMPLETED, Outcome
from ..values.records import ClaimedJob
from .running_attempt import RunningAttempt

Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]

Middleware = Callable[[ClaimedJob], Manager]
"""Makes the context manager for one attempt of this job. For an `async def` task it may be an asynchronous one."""

Run = Callable[[Task[Any, Any], RunningAttempt], Outcome]

AsyncRun = Callable[[Task[Any, Any], RunningAttempt], Awaitable[Outcome]]


def load_middleware() -> list[Middleware]:
    """Import the middleware of `SKIPQUEUE["MIDDLEWARE"]`, outermost first. Raises `ImproperlyConfigured`."""
    return [import_middleware(path) for path in settings.middleware]


def import_middleware(path: str) -> Middleware:
    """Import the middleware at this dotted path. Raises `ImproperlyConfigured` if it is missing or no middleware."""
    try:
        middleware = import_string(path)
    except ImportError as error:
        message = f"SKIPQUEUE['MIDDLEWARE'] names {path!r}, which cannot be imported: {error}"
        raise ImproperlyConfigured(message) from error
    if not callable(middleware):
        raise ImproperlyConfigured(
            f"SKIPQUEUE['MIDDLEWARE'] names {path!r}, which is {type(middleware).__name__}: it must be a function or a "
            "class that is called with a job and returns a context manager."
        )
    if any(test(middleware) for test in (isgeneratorfunction, isasyncgenfunction, iscoroutinefunction)):
        raise ImproperlyConfigured(
            f"SKIPQUEUE['MIDDLEWARE'] names {path!r}, which returns no context manager: decorate it with "
            "contextlib.contextmanager, or asynccontextmanager if it is an async def."
        )
    found: Middleware = middleware
    return found


def wrap(run: Run, middlewares: Iterable[Middleware]) -> Run:
    for middleware in reversed([*middlewares]):
        run = _wrap_once(run, middleware)
    return run


def _not_a_manager(middleware: Middleware, made: object) -> TypeError:
    name = f"{middleware.__module__}.{getattr(middleware, '__qualname__', type(middleware).__qualname__)}"
    reason = "is no context manager"
    if isinstance(made, AbstractAsyncContextManager):
        reason = "is an asynchronous context manager, for `async def` tasks alone"
    return TypeError(f"The middleware {name} returned {made!r}, which {reason}.")


def wrap_async(run: AsyncRun, middlewares: Iterable[Middleware]) -> AsyncRun:
    for middleware in reversed([*middlewares]):
        run = _wrap_async_once(run, middleware)
    return run


def _wrap_once(run: Run, middleware: Middleware) -> Run:
    def run_in_it(task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        manager = middleware(running.job)
        if not isinstance(manager, AbstractContextManager):
            raise _not_a_manager(middleware, manager)
        with manager:
            return run(task, running)
        return COMPLETED  # the manager suppressed the task's exception

    return run_in_it


def _wrap_async_once(run: AsyncRun, middleware: Middleware) -> AsyncRun:
    async def run_in_it(task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        manager = middleware(running.job)
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager:
                return await run(task, running)
        elif not isinstance(manager, AbstractContextManager):
            raise _not_a_manager(middleware, manager)
        else:
            with manager:
                return await run(task, running)
        return COMPLETED

    return run_in_it

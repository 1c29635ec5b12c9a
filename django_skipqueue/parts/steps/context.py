"""The methods of `JobContext` by which a task goes on where it stopped. Each has a twin for `async def` tasks.

They import the rest of the part only when they are called, because this package is imported before Django's models.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import sync_to_async

from ...exceptions import InvalidOption
from ...values.outcomes import Delay

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet

    from ...jobs.context import AttemptHandle
    from ...jobs.task_call import TaskCall
    from .attempt import AttemptSteps

T = TypeVar("T")
Row = TypeVar("Row", bound="Model")

ASYNC_STEP = "it is an async def. In an async def task, await context.astep(…), without atomic=True."


def iscoroutinefunction(function: Callable[..., Any]) -> bool:
    """Return whether a call of this function has to be awaited."""
    return inspect.iscoroutinefunction(inspect.unwrap(function))


class StepsContext:
    """Methods of `JobContext`."""

    is_atomic: bool
    running: "AttemptHandle | None"

    def step(self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool = False, **kwargs: Any) -> T:
        """Record the result of `function(*args, **kwargs)` and return it. A later attempt gets the recorded result.

        If the attempt ends between the call and the record, the next attempt calls the function again. atomic: one
        transaction contains the record and all that the function writes to the queue's database, so it is written
        exactly once.

        Raises `InvalidOption` for a name that this attempt has already used, and for arguments that the function does
        not accept. Raises `UnstorableResult` for a result that is not JSON and does not fit the function's annotation;
        this fails the job without a retry, which would call the function again. Raises `LeaseLost` if the job was taken
        from the worker in the meantime; what an atomic step has written is then rolled back.
        """
        if iscoroutinefunction(function):
            raise InvalidOption(f"The step {name!r} cannot await {function!r}: {ASYNC_STEP}")
        result: T = self._steps("step").step(name, function, args, kwargs, atomic=atomic)
        return result

    def sleep(self, name: str, delay: Delay) -> None:
        """Go on with the task after this delay. Until then, the job is scheduled, and takes up no slot of a worker.

        The attempt ends here, and does not count. After the delay, the task runs from its beginning, with its recorded
        steps. Raises `InvalidOption` within a transaction.
        """
        self._steps("sleep").sleep(name, delay)

    def wait(self, name: str, timeout: Delay | None = None) -> Any:
        """Return the payload of `job.signal(name, payload)`. Until it comes, the job is blocked, without a slot.

        Raises `SignalTimeout` if no signal comes within the timeout, and `InvalidOption` within a transaction.
        """
        return self._steps("wait").wait(name, timeout)

    def run(self, name: str, call: "TaskCall") -> Any:
        """Run this call, such as `resize.s(1)`, as a job, and return its result. Until then, this job takes up no slot.

        Raises `ChildFailed` if that job fails or is discarded, and `InvalidOption` within a transaction.
        """
        return self._run("run", name, [call])[0]

    def run_all(self, name: str, calls: "Sequence[TaskCall]") -> list[Any]:
        """Run these calls as jobs at the same time, and return their results in the order of the calls. See `run`."""
        return self._run("run_all", name, calls)

    @overload
    def each(self, name: str, items: "QuerySet[Row]", *, by: str = "pk") -> Iterator[Row]: ...
    @overload
    def each(self, name: str, items: Sequence[T]) -> Iterator[T]: ...
    @overload
    def each(
        self,
        name: str,
        items: "QuerySet[Row]",
        function: Callable[[Row], object],
        *,
        by: str = "pk",
        atomic: bool = False,
    ) -> None: ...
    @overload
    def each(self, name: str, items: Sequence[T], function: Callable[[T], object], *, atomic: bool = False) -> None: ...
    def each(
        self,
        name: str,
        items: Any,
        function: Callable[[Any], object] | None = None,
        *,
        by: str = "pk",
        atomic: bool = False,
    ) -> Iterator[Any] | None:
        """Yield the items for a `for` loop. A later attempt goes on after the last finished item.

        A query set is read in chunks, in the order of the field `by`, which is unique and not null. Rows that are added
        before the loop's current place are not seen. A sequence is read by position. The place is written once a second
        and at the end of the attempt, so that at most the items of one second are repeated if the worker dies.

        function: called with each item, in place of the `for` loop. atomic: one transaction contains the place and all
        that the function writes to the queue's database, so that each item is done exactly once.

        Raises `InvalidOption` for items that have no lasting order, and within a transaction, unless `atomic` is given.
        """
        if function is None:
            return self._items(name, items, by, atomic=atomic)
        if iscoroutinefunction(function):
            raise InvalidOption(f"each({name!r}) cannot await {function!r}. In an async def task, use aeach.")
        self._call_each(name, items, function, by, atomic=atomic)
        return None

    # For `async def` tasks

    @overload
    def astep(self, name: str, function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> Awaitable[T]: ...
    @overload
    def astep(
        self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool = False, **kwargs: Any
    ) -> Awaitable[T]: ...
    def astep(
        self, name: str, function: Callable[..., Any], /, *args: Any, atomic: bool = False, **kwargs: Any
    ) -> Awaitable[Any]:
        """`step` for an `async def` task: the function may be a `def` or an `async def`; with `atomic` a `def`."""
        _require_loop("step")
        if not iscoroutinefunction(function):
            return sync_to_async(self.step)(name, function, *args, atomic=atomic, **kwargs)
        if atomic:
            raise InvalidOption(f"The step {name!r} cannot be atomic: {ASYNC_STEP}")
        return self._astep(name, function, args, kwargs)

    def asleep(self, name: str, delay: Delay) -> Awaitable[None]:
        """`sleep` for an `async def` task."""
        _require_loop("sleep")
        return sync_to_async(self.sleep)(name, delay)

    def await_signal(self, name: str, timeout: Delay | None = None) -> Awaitable[Any]:
        """`wait` for an `async def` task. It cannot be called `await`, which is a keyword of Python."""
        _require_loop("wait")
        return sync_to_async(self.wait)(name, timeout)

    def arun(self, name: str, call: "TaskCall") -> Awaitable[Any]:
        """`run` for an `async def` task."""
        _require_loop("run")
        return sync_to_async(self.run)(name, call)

    def arun_all(self, name: str, calls: "Sequence[TaskCall]") -> Awaitable[list[Any]]:
        """`run_all` for an `async def` task."""
        _require_loop("run_all")
        return sync_to_async(self.run_all)(name, calls)

    @overload
    def aeach(self, name: str, items: "QuerySet[Row]", *, by: str = "pk") -> AsyncIterator[Row]: ...
    @overload
    def aeach(self, name: str, items: Sequence[T]) -> AsyncIterator[T]: ...
    @overload
    def aeach(
        self,
        name: str,
        items: "QuerySet[Row]",
        function: Callable[[Row], object],
        *,
        by: str = "pk",
        atomic: bool = False,
    ) -> Awaitable[None]: ...
    @overload
    def aeach(
        self, name: str, items: Sequence[T], function: Callable[[T], object], *, atomic: bool = False
    ) -> Awaitable[None]: ...
    def aeach(
        self,
        name: str,
        items: Any,
        function: Callable[[Any], Any] | None = None,
        *,
        by: str = "pk",
        atomic: bool = False,
    ) -> AsyncIterator[Any] | Awaitable[None]:
        """`each` for an `async def` task: for an `async for`, or with a function, which may be an `async def`."""
        _require_loop("each")
        if function is None:
            return self._aitems(name, items, by, atomic=atomic)
        if not iscoroutinefunction(function):
            return sync_to_async(self._call_each)(name, items, function, by, atomic=atomic)
        if atomic:
            raise InvalidOption(f"each({name!r}) cannot be atomic with an async def: Django has no such transactions.")
        return self._acall_each(name, items, function, by)

    async def _astep(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return await (await sync_to_async(self._steps)("step")).astep(name, function, args, kwargs)

    def _items(self, name: str, items: Any, by: str, *, atomic: bool) -> Iterator[Any]:
        if atomic:
            raise InvalidOption(f"each({name!r}, …, atomic=True) needs a function that it calls with each item.")
        from .each import loop

        return loop(self._steps("each"), name, items, by)

    def _call_each(self, name: str, items: Any, function: Callable[[Any], object], by: str, *, atomic: bool) -> None:
        from .each import call_each

        call_each(self._steps("each"), name, items, function, by, atomic=atomic)

    async def _aitems(self, name: str, items: Any, by: str, *, atomic: bool) -> AsyncIterator[Any]:
        iterator = await sync_to_async(self._items)(name, items, by, atomic=atomic)
        end = object()
        while (item := await sync_to_async(lambda: next(iterator, end))()) is not end:
            yield item

    async def _acall_each(self, name: str, items: Any, function: Callable[[Any], Any], by: str) -> None:
        async for item in self._aitems(name, items, by, atomic=False):
            await function(item)

    def _run(self, method: str, name: str, calls: "Sequence[TaskCall]") -> list[Any]:
        from .children import run_children

        steps = self._steps(method)
        steps.require_no_transaction(method, name)
        return run_children(steps, name, calls)

    def _steps(self, method: str) -> "AttemptSteps":
        """Return the steps of this attempt. Raises `InvalidOption` if this context has none."""
        from .attempt import AttemptSteps

        if (twin := _twin_here(method)) is not None:
            raise InvalidOption(f"{method}() sends queries: in an async def task, {twin}.")
        if self.running is None:
            raise InvalidOption(f"{method}() needs a worker that runs the job. In a test, run_jobs() is one.")
        if self.is_atomic:
            raise InvalidOption(
                f"{method}() is of no use in a task with atomic=True: the whole task is one transaction, which no "
                "step of it outlasts. Leave atomic=True out, and give it to the steps."
            )
        for part in self.running.parts:
            if isinstance(part, AttemptSteps):
                return part
        steps = AttemptSteps(self.running)
        self.running.parts = (*self.running.parts, steps)
        return steps


def _twin_here(method: str) -> str | None:
    """Return the call to use instead of this method if an event loop is running here; otherwise `None`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    if method == "each":
        return "say async for … in context.aeach(…)"
    return f"await context.{'await_signal' if method == 'wait' else f'a{method}'}(…)"


def _require_loop(method: str) -> None:
    """Raise `InvalidOption` in a `def` task, because it cannot await what the method returns."""
    if _twin_here(method) is None:
        raise InvalidOption(f"This is for async def tasks, and awaited. In a def task, call context.{method}(…).")

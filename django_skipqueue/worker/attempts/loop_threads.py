"""The threads of an event loop: for the calls of `asyncio.to_thread`, and for asgiref's queries.

The calls that `async def` tasks make by `asyncio.to_thread` and `run_in_executor` run in threads of the loop.
Invariant: a call that hangs after its task has ended takes no thread from later calls.

In one more thread, asgiref runs the queries and other calls of all `async def` tasks, one after the other. Invariant:
the time limit of an attempt does not count the time for which calls of other attempts keep its own call from beginning,
up to `running_attempt.LONGEST_WAIT`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync

from ...jobs.context import current_attempt
from .running_attempt import RunningAttempt

MOST_LEFT = 64
"""Calls still running after their tasks have ended, at which the process is replaced."""


class CallThreads(ThreadPoolExecutor):
    """Used in the event loop's thread. The executor ends with the process: no task can shut it down for the others."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="skipqueue-call")
        self._threads_in_use = self._max_workers
        self._callers: dict[Future[Any], asyncio.Task[Any] | None] = {}

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_default_executor(self)
        loop.shutdown_default_executor = _keep  # type: ignore[method-assign]

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(*args, **kwargs)
        self._callers[future] = _current_task()
        future.add_done_callback(self._callers.pop)
        return future

    def replace_left(self) -> int:
        """Allow one more thread for each call that still runs although its task is done. Returns their number."""
        if not self._callers:
            return 0
        callers = list(self._callers.items())
        left = sum(caller is not None and caller.done() and future.running() for future, caller in callers)
        if left:
            self._max_workers = self._threads_in_use + left
            if self._work_queue.qsize():
                self._adjust_thread_count()
        return left

    def end(self) -> None:
        super().shutdown(wait=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: a task that calls this would end the calls of all tasks after it."""


async def _keep(timeout: float | None = None) -> None:
    """Replaces the event loop's own method, after which the loop would refuse further calls."""


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # called from another thread
        return None


class QueryThread:
    """Stops the clock of an attempt while it has calls that wait, and none that runs."""

    def __init__(self) -> None:
        self._changing = threading.Lock()  # guards the following, and the clocks; no interruption is raised under it
        self._waiting: Counter[RunningAttempt] = Counter()
        self._served: RunningAttempt | None = None

    def use_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the calls that tasks of this event loop make, before it begins to run."""
        loop.run_in_executor = partial(self._run_in_executor, loop.run_in_executor)  # type: ignore[method-assign,assignment]

    def _run_in_executor(
        self,
        run_in_executor: Callable[..., "asyncio.Future[Any]"],
        executor: Executor | None,
        call: Callable[..., Any],
        *args: Any,
    ) -> "asyncio.Future[Any]":
        attempt = current_attempt.get() if executor is SyncToAsync.single_thread_executor else None
        if not isinstance(attempt, RunningAttempt) or attempt.timeout is None:
            return run_in_executor(executor, call, *args)
        unbegun = [attempt]  # emptied once: as the call begins, or is cancelled before
        self._note(attempt, waiting=1)
        future = run_in_executor(executor, self._serve, unbegun, attempt, call, *args)
        future.add_done_callback(lambda _: self._leave_queue(unbegun))
        return future

    def _leave_queue(self, unbegun: list[RunningAttempt], *, is_served: bool | None = None) -> None:
        try:
            attempt = unbegun.pop()
        except IndexError:
            return
        self._note(attempt, waiting=-1, is_served=is_served)

    def _serve(
        self, unbegun: list[RunningAttempt], attempt: RunningAttempt, call: Callable[..., Any], *args: Any
    ) -> object:
        """Called in the query thread."""
        self._leave_queue(unbegun, is_served=True)
        try:
            return call(*args)
        finally:
            self._note(attempt, is_served=False)

    def _note(self, attempt: RunningAttempt, *, waiting: int = 0, is_served: bool | None = None) -> None:
        with self._changing:
            self._waiting[attempt] += waiting
            if is_served is not None:
                self._served = attempt if is_served else None
            if self._waiting[attempt] and self._served is not attempt:
                attempt.stop_clock()
            else:
                attempt.start_clock()
            if not self._waiting[attempt]:
                del self._waiting[attempt]

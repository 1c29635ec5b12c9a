"""The one thread in which asgiref runs the queries and other calls of all `async def` tasks, one after the other.

Invariant: the time limit of an attempt does not count the time for which calls of other attempts keep its own call from
beginning, up to `LONGEST_WAIT`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync

from ..tasks.context import current_attempt
from .running_attempt import RunningAttempt


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

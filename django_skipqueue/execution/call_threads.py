"""The threads of an event loop for the calls that `async def` tasks make by `asyncio.to_thread` and `run_in_executor`.

Invariant: a call that hangs after its task has ended takes no thread from later calls.
"""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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

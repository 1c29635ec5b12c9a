"""What Django promises around the call of a task function, as functions for the executor.

Invariant: a result that cannot be kept ends the job, and says so; no other error is changed here. Without a listener
and without `takes_context`, no result object is made.
"""

import logging
from collections.abc import Callable
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async

from .framework import AnyTask, TaskContext, hears, log_task_started, sender_for, task_started
from .mapping import UnreadResult, storable

MakeResult = Callable[[], UnreadResult]

UNKEPT = "The task ran to its end, but its result cannot be kept."


def around(task: AnyTask) -> Callable[..., Any]:
    """What the executor runs for this task: it takes a function that makes the job's result, then the arguments."""
    run = _in_event_loop(task) if iscoroutinefunction(task.func) else _in_thread(task)
    update_wrapper(run, task.func)
    del run.__wrapped__  # type: ignore[attr-defined]  # its own signature is what counts
    return run


def is_unkept(error: BaseException) -> bool:
    """Whether the task had done its work when this was raised."""
    return UNKEPT in getattr(error, "__notes__", ())


def _in_thread(task: AnyTask) -> Callable[..., Any]:
    func, takes_context = task.func, task.takes_context

    def run(make_result: MakeResult, /, *args: Any, **kwargs: Any) -> Any:
        sends_start = _hears_start()
        if sends_start or takes_context:
            result = make_result()
            if sends_start:
                task_started.send_robust(sender_for(result.backend), task_result=result)
            if takes_context:
                args = (TaskContext(task_result=result), *args)
        return _kept(func(*args, **kwargs))

    return run


def _in_event_loop(task: AnyTask) -> Callable[..., Any]:
    func, takes_context = task.func, task.takes_context

    async def run(make_result: MakeResult, /, *args: Any, **kwargs: Any) -> Any:
        sends_start = _hears_start()
        if sends_start or takes_context:
            result = make_result()
            if takes_context:
                await sync_to_async(result.read)()  # here, and not when it is used: an event loop may not wait for it
            if sends_start:
                await task_started.asend_robust(sender_for(result.backend), task_result=result)
            if takes_context:
                args = (TaskContext(task_result=result), *args)
        return _kept(await func(*args, **kwargs))

    return run


def _hears_start() -> bool:
    return hears(task_started, log_receiver=log_task_started, level=logging.INFO)


def _kept(value: Any) -> Any:
    """The return value as it will be stored."""
    if value is None:
        return None
    try:
        return storable(value)
    except (TypeError, ValueError, RecursionError) as error:
        error.add_note(UNKEPT)
        raise

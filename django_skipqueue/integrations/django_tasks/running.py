"""Wraps the function of a Django task, so that it gets its context and its `task_started` signal is sent.

Invariant: an error about a return value that cannot be stored gets a note; no other error is changed. No result object
is made without a receiver of the signal or `takes_context`.
"""

import logging
from collections.abc import Callable
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async

from .framework import AnyTask, TaskContext, has_listeners, log_task_started, sender_for, task_started
from .mapping import UnreadResult, storable

MakeResult = Callable[[], UnreadResult]

UNSTORABLE_RESULT = "The task ran to its end, but its result cannot be kept."


def around(task: AnyTask) -> Callable[..., Any]:
    """The function that the executor calls: it takes a function that makes the job's result, then the arguments."""
    run = _in_event_loop(task) if iscoroutinefunction(task.func) else _in_thread(task)
    update_wrapper(run, task.func)
    del run.__wrapped__  # type: ignore[attr-defined]  # so that `run` keeps its own signature
    return run


def is_unstorable_result(error: BaseException) -> bool:
    """Whether the task had ended normally, and only its return value could not be stored."""
    return UNSTORABLE_RESULT in getattr(error, "__notes__", ())


def _in_thread(task: AnyTask) -> Callable[..., Any]:
    func, takes_context = task.func, task.takes_context

    def run(make_result: MakeResult, /, *args: Any, **kwargs: Any) -> Any:
        sends_start = _start_has_listeners()
        if sends_start or takes_context:
            result = make_result()
            if sends_start:
                task_started.send_robust(sender_for(result.backend), task_result=result)
            if takes_context:
                args = (TaskContext(task_result=result), *args)
        return func(*args, **kwargs)

    return run


def _in_event_loop(task: AnyTask) -> Callable[..., Any]:
    func, takes_context = task.func, task.takes_context

    async def run(make_result: MakeResult, /, *args: Any, **kwargs: Any) -> Any:
        sends_start = _start_has_listeners()
        if sends_start or takes_context:
            result = make_result()
            if takes_context:
                await sync_to_async(result.read)()  # read now, because a later query would block the event loop
            if sends_start:
                await task_started.asend_robust(sender_for(result.backend), task_result=result)
            if takes_context:
                args = (TaskContext(task_result=result), *args)
        return await func(*args, **kwargs)

    return run


def _start_has_listeners() -> bool:
    return has_listeners(task_started, log_receiver=log_task_started, level=logging.INFO)


def normalized_result(value: Any) -> Any:
    """The return value as a row will return it, with a note in the error if it cannot be stored."""
    try:
        return storable(value)
    except (TypeError, ValueError, RecursionError) as error:
        error.add_note(UNSTORABLE_RESULT)
        raise

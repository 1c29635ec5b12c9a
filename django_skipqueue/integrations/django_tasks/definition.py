"""`SkipQueueTask`: Django's task class with our options. `DjangoTask`: the entry of a Django task in our registry.

A task is registered when it is defined, and again when it is enqueued, because settings may have changed since. The
name in a job's row never causes an import.

A wrapper around the function of a task sends Django's signal `task_started`, and passes the context. An error about a
return value that cannot be stored gets a note. The wrapper makes a result object only if the signal has a receiver, or
if the task takes the context.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, update_wrapper
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ...exceptions import InvalidArguments, InvalidOption, UnknownTask
from ...jobs.context import JobContext
from ...jobs.decorator import CheckedOptions, options_given_to
from ...jobs.options import Options
from ...jobs.registry import registry
from ...jobs.task import Task, call_columns
from ...jobs.task_call import TaskCall
from ...values.backoff import Backoff, RetryPolicy
from ...values.codec import decode, encode
from ...values.outcomes import Outcome
from ...values.records import ClaimedJob, EncodedCall, JobSpec
from .framework import AnyTask, InvalidTask, TaskContext, has_listeners, log_task_started, sender_for, task_started
from .mapping import ALIAS, UnreadResult, call, options_for, resolved, spec, stand_in, storable, unread

if TYPE_CHECKING:
    from ...models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipQueueTask(AnyTask):
    """Django's task class with the options of this backend: `@task(max_attempts=3)`, on Django 6.1 and newer."""

    max_attempts: int | None = None
    """The default is `max_attempts` in the backend's `OPTIONS`, or else `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """A function that takes the number of the failed attempt and returns seconds, or the function's dotted path. The
    default is `backoff` in `OPTIONS`."""
    timeout: float | None = None
    """Seconds after which an attempt is interrupted and fails. The default is `timeout` in `OPTIONS`, if it is set."""

    def __post_init__(self) -> None:
        AnyTask.__post_init__(self)  # `super()` does not work in a dataclass with slots
        registered(self)

    def s(self, *args: Any, **kwargs: Any) -> TaskCall:
        """Return the task with these arguments, for the callbacks of a `Batch`, or for a `chain`.

        Raises `InvalidArguments` for arguments that do not fit the task.
        """
        registered(self).require_fit(args, kwargs)
        backend: Any = self.get_backend()
        call: TaskCall = backend.call_of(self, args, kwargs)
        return replace(call, inserted=partial(backend.announce, self))


class DjangoTask(Task[..., Any]):
    """A Django task as a task of this package, which the registry has and workers run."""

    def __init__(self, definition: AnyTask) -> None:
        decorator_options = decorator_options_of(definition)
        options = options_of(definition)
        super().__init__(
            wrapped_function(definition),
            name=definition.module_path,
            options=replace(options, timeout=None),
            policy=Policy(decorator_options.policy.backoff, decorator_options.retry_on, decorator_options.discard_on),
            takes_context=True,
            timeout=options.timeout,
            redact=decorator_options.redact,
        )
        self.definition = definition
        self.alias = definition.backend
        self.backoff = getattr(definition, "backoff", None) or decorator_options.backoff
        self.__wrapped__ = definition.func
        full_signature = signature(definition.func)
        parameters = list(full_signature.parameters.values())
        without_context = parameters[1:] if definition.takes_context else parameters
        self.signature = full_signature.replace(parameters=without_context)

    def normalized(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """Convert the arguments of a call to JSON: annotated types as `@job` does, other values as Django does.

        Raises `TypeError` or `ValueError` for a value that neither can convert. Like Django, does not check the
        signature.
        """
        types = self.call_types
        if types is None:
            json_args, json_kwargs = storable(list(args)), storable(dict(kwargs))
            return call(json_args, json_kwargs, call_columns(self, json_args, json_kwargs))
        arguments = types.with_plain(storable, args, kwargs)
        return call(*types.encode(*arguments), call_columns(self, *arguments))

    def encoded_result(self, result: Any) -> str:
        """Encode the result as JSON. A result that does not fit the annotation is normalized by Django's rules."""
        if self.result_type is not None:
            with suppress(InvalidArguments):
                result = self.result_type.encode("The result", result)
        try:
            json_result = storable(result)
        except (TypeError, ValueError, RecursionError) as error:
            error.add_note(UNSTORABLE_RESULT)
            raise
        return encode("The result", json_result)

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """Return a function that makes the task result. It is called only if the task or a receiver needs it."""
        return partial(unread, job, self.definition, status="running", database=context.database)

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """Return the policy with the task's backoff, or else with the backoff of the backend that enqueued the job."""
        alias = decode(job.metadata).get(ALIAS, self.definition.backend)
        backoff = self.backoff or options_for(alias).backoff
        return replace(self.policy, backoff=resolved(backoff)) if backoff else self.policy

    @property
    def named_database(self) -> str | None:
        return options_for(self.definition.backend).database

    def spec(self) -> JobSpec:
        """Return the spec with which `.enqueue()` inserts jobs, including the values in the backend's `OPTIONS`."""
        backend_options = options_for(self.definition.backend)
        return spec(self.definition, options_of(self.definition), backend_options, alias=self.definition.backend)


class Policy(RetryPolicy):
    """A retry policy that does not retry an attempt which returned a value that cannot be stored."""

    def decide(self, error: BaseException, entry: dict[str, Any], *, attempt: int, max_attempts: int) -> Outcome:
        is_unstorable = UNSTORABLE_RESULT in getattr(error, "__notes__", ())
        last_attempt = attempt if is_unstorable else max_attempts  # a job is not retried after its last attempt
        return super().decide(error, entry, attempt=attempt, max_attempts=last_attempt)


MakeResult = Callable[[], UnreadResult]

UNSTORABLE_RESULT = "The task ran to its end, but its result cannot be kept."


def wrapped_function(task: AnyTask) -> Callable[..., Any]:
    """Wrap a task's function. The executor calls the wrapper with a function that makes the result, and arguments."""
    run = _in_event_loop(task) if iscoroutinefunction(task.func) else _in_thread(task)
    update_wrapper(run, task.func)
    del run.__wrapped__  # type: ignore[attr-defined]  # so that `run` keeps its own signature
    return run


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


def registered(definition: AnyTask) -> DjangoTask:
    """Return the registry's entry for this task. Registers the task if needed, or if its function has changed."""
    task_entry = entry(definition.module_path)
    if task_entry is None or task_entry.definition.func is not definition.func:
        task_entry = DjangoTask(definition)
        registry.register(task_entry)
    return task_entry


def entry(name: str) -> DjangoTask | None:
    """Return the registry's entry with this name; `None` if it is missing, or is not a Django task."""
    try:
        registered_task = registry.get(name)
    except UnknownTask:
        return None
    return registered_task if isinstance(registered_task, DjangoTask) else None


def definition_of(job: "Job") -> AnyTask | None:
    """Return the Django task of a job; `None` if neither the job nor its task belongs to `django.tasks`."""
    task_entry = entry(job.task)
    if task_entry is not None:
        return task_entry.definition
    return stand_in(job.task, alias=job.metadata[ALIAS]) if ALIAS in job.metadata else None


def decorator_options_of(definition: AnyTask) -> CheckedOptions:
    """Return the options that `with_options` has stored on the task's function, or the defaults."""
    return options_given_to(definition.func) or CheckedOptions()


def options_of(definition: AnyTask) -> Options:
    """Return the options for jobs of this task. Raises `InvalidTask` for a value that is not valid."""
    run_after: Any = definition.run_after
    own_options = {name: getattr(definition, name, None) for name in ("max_attempts", "timeout")}
    try:
        return replace(
            decorator_options_of(definition).options,
            queue_name=definition.queue_name,
            priority=int(definition.priority),
            run_after=run_after if isinstance(run_after, timedelta) else None,  # Django checks a datetime itself
            **{name: value for name, value in own_options.items() if value is not None},
        )
    except (InvalidOption, InvalidArguments) as error:
        raise InvalidTask(str(error)) from None

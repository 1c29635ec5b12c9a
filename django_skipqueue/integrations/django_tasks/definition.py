"""`@task` on this backend: Django's task with our options, and its entry in the registry that `@job` fills as well.

Invariant: a task is registered when it is defined, and again when it is enqueued, because settings may have changed in
between. A name in a row never causes an import.

A wrapper around the function of a task sends the `task_started` signal and passes the context. Invariant: an error
about a return value that cannot be stored gets a note; no other error is changed. The wrapper makes a result object
only if the signal has a receiver or the task takes the context.
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
from ...jobs.decorator import Given, options_given_to
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
    """Django's task, with the options that this backend adds: `@task(max_attempts=3)` on Django 6.1 and newer."""

    max_attempts: int | None = None
    """`None`: `max_attempts` of the backend's `OPTIONS`, or else `SKIPQUEUE["MAX_ATTEMPTS"]`."""
    backoff: Backoff | str | None = None
    """Returns seconds for the number of a failed attempt; or the function's path; `None`: `backoff` of `OPTIONS`."""
    timeout: float | None = None
    """Seconds after which an attempt is interrupted and fails; `None`: `timeout` of the backend's `OPTIONS`, if any."""

    def __post_init__(self) -> None:
        AnyTask.__post_init__(self)  # `super()` does not work in a dataclass with slots
        registered(self)

    def s(self, *args: Any, **kwargs: Any) -> TaskCall:
        """The task with arguments: for callbacks of a `Batch`, and for a `chain`.

        Raises `InvalidArguments` for arguments that do not fit the task.
        """
        registered(self).require_fit(args, kwargs)
        backend: Any = self.get_backend()
        call: TaskCall = backend.call_of(self, args, kwargs)
        return replace(call, inserted=partial(backend.announce, self))


class DjangoTask(Task[..., Any]):
    def __init__(self, definition: AnyTask) -> None:
        given = given_to(definition)
        options = options_of(definition)
        super().__init__(
            around(definition),
            name=definition.module_path,
            options=replace(options, timeout=None),
            policy=Policy(given.policy.backoff, given.retry_on, given.discard_on),
            takes_context=True,
            timeout=options.timeout,
            redact=given.redact,
        )
        self.definition = definition
        self.alias = definition.backend
        self.backoff = getattr(definition, "backoff", None) or given.backoff
        self.__wrapped__ = definition.func
        own = signature(definition.func)
        parameters = list(own.parameters.values())
        self.signature = own.replace(parameters=parameters[1:] if definition.takes_context else parameters)

    def normalized(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedCall:
        """A call as JSON: values of annotated types as `@job` stores them, all other values as Django normalizes them.

        Raises `TypeError` or `ValueError` for a value that is neither. Like Django, does not check the signature.
        """
        types = self.call_types
        if types is None:
            plain, named = storable(list(args)), storable(dict(kwargs))
            return call(plain, named, call_columns(self, plain, named))
        given = types.with_plain(storable, args, kwargs)
        return call(*types.encode(*given), call_columns(self, *given))

    def encoded_result(self, result: Any) -> str:
        """See `Task.encoded_result`. Django's own rules normalize a result that does not fit the annotation."""
        if self.result_type is not None:
            with suppress(InvalidArguments):
                result = self.result_type.encode("The result", result)
        try:
            stored = storable(result)
        except (TypeError, ValueError, RecursionError) as error:
            error.add_note(UNSTORABLE_RESULT)
            raise
        return encode("The result", stored)

    def context(self, context: JobContext, job: ClaimedJob) -> Any:
        """A callable that builds the task result. `around` calls it only if the task or a receiver needs the result."""
        return partial(unread, job, self.definition, status="running", database=context.database)

    def policy_for(self, job: ClaimedJob) -> RetryPolicy:
        """The policy with the task's own backoff, or the backoff of the alias on which the job was enqueued."""
        alias = decode(job.metadata).get(ALIAS, self.definition.backend)
        backoff = self.backoff or options_for(alias).backoff
        return replace(self.policy, backoff=resolved(backoff)) if backoff else self.policy

    @property
    def named_database(self) -> str | None:
        return options_for(self.definition.backend).database

    def spec(self) -> JobSpec:
        """The columns with which `.enqueue()` inserts jobs, including columns from the `OPTIONS` of the alias."""
        given = options_for(self.definition.backend)
        return spec(self.definition, options_of(self.definition), given, alias=self.definition.backend)


class Policy(RetryPolicy):
    """Retries as the options say, except for an attempt that returned a value that cannot be stored."""

    def decide(self, error: BaseException, entry: dict[str, Any], *, attempt: int, max_attempts: int) -> Outcome:
        is_unstorable = UNSTORABLE_RESULT in getattr(error, "__notes__", ())
        last = attempt if is_unstorable else max_attempts  # no attempts left: not retried
        return super().decide(error, entry, attempt=attempt, max_attempts=last)


MakeResult = Callable[[], UnreadResult]

UNSTORABLE_RESULT = "The task ran to its end, but its result cannot be kept."


def around(task: AnyTask) -> Callable[..., Any]:
    """The function that the executor calls. It takes a function that makes the job's result, and then the arguments."""
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
                await sync_to_async(result.read)()  # now: a later query would block the event loop
            if sends_start:
                await task_started.asend_robust(sender_for(result.backend), task_result=result)
            if takes_context:
                args = (TaskContext(task_result=result), *args)
        return await func(*args, **kwargs)

    return run


def _start_has_listeners() -> bool:
    return has_listeners(task_started, log_receiver=log_task_started, level=logging.INFO)


def registered(definition: AnyTask) -> DjangoTask:
    """Return the registry's entry for this task. Makes one if there is none, or if it belongs to another function."""
    known = entry(definition.module_path)
    if known is None or known.definition.func is not definition.func:
        known = DjangoTask(definition)
        registry.register(known)
    return known


def entry(name: str) -> DjangoTask | None:
    """The registry's entry of this name, if it is a task of Django's."""
    try:
        known = registry.get(name)
    except UnknownTask:
        return None
    return known if isinstance(known, DjangoTask) else None


def definition_of(job: "Job") -> AnyTask | None:
    """The task of a job; `None` if the job was not enqueued by `django.tasks` and its task is not one of Django's."""
    known = entry(job.task)
    if known is not None:
        return known.definition
    return stand_in(job.task, alias=job.metadata[ALIAS]) if ALIAS in job.metadata else None


def given_to(definition: AnyTask) -> Given:
    """The options that `with_options` has given to the task's function, or the defaults."""
    return options_given_to(definition.func) or Given()


def options_of(definition: AnyTask) -> Options:
    """The options of this task's jobs. Raises `InvalidTask` for a value that cannot be used."""
    due_in: Any = definition.run_after
    own = {name: getattr(definition, name, None) for name in ("max_attempts", "timeout")}
    try:
        return replace(
            given_to(definition).options,
            queue_name=definition.queue_name,
            priority=int(definition.priority),
            run_after=due_in if isinstance(due_in, timedelta) else None,  # a datetime is checked by Django
            **{name: value for name, value in own.items() if value is not None},
        )
    except (InvalidOption, InvalidArguments) as error:
        raise InvalidTask(str(error)) from None

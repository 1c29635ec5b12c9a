"""Run a task, and decide the outcome of the attempt.

`execute` always returns an attempt with an outcome, whatever the task does: return, raise, exit, or return a value that
JSON cannot represent. The executor writes nothing to the database, except the outcome of an `atomic` task, which is
written in the task's own transaction.

The setting `MIDDLEWARE` wraps each attempt in context managers, the first of which is the outermost. They work like
nested `with` statements: an exception of the task passes through all of them. If a manager raises another exception,
that exception decides the outcome.
"""

import contextlib
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils.module_loading import import_string

from ...conf import settings
from ...events import log_context, logs, tracing
from ...events.events import AttemptStarted
from ...events.sinks import send, wanted
from ...exceptions import InvalidArguments, UnknownTask, UnreadableArguments, UnstorableResult
from ...jobs import annotations  # noqa: F401 (a task imports them at its first call: too late)
from ...jobs.context import JobContext, complete, current_attempt
from ...jobs.registry import registry, where_to_look
from ...jobs.task import Task
from ...values.backoff import exponential
from ...values.codec import clean, decode, shorten, size_of
from ...values.outcomes import (
    COMPLETED,
    TRACEBACK_LIMIT,
    Discard,
    EndAttempt,
    Outcome,
    Retry,
    Settlement,
    Snooze,
    error_entry,
    summary,
)
from ...values.records import Attempt, ClaimedJob
from .forked_children import children
from .running_attempt import STUCK_AFTER, Interrupter, RunningAttempt

UNKNOWN_TASK_DELAY = 10.0
"""Seconds until a job with an unknown task is tried again. Deploying new code to a machine takes about this long."""

Finished = Attempt | BaseException
"""What a runner reports: a finished attempt, or the exception that broke the runner."""

Finish = Callable[[Finished], None]

DECISION_SECONDS = 1.0
"""For how many seconds the control loop waits for the retry policy of a stuck attempt."""


class Executor:
    """Runs jobs for one worker. `execute` may be called by several threads at once."""

    def __init__(self, *, worker: str, database: str, interrupter: Interrupter | None = None) -> None:
        self.worker = worker
        self.database = database
        self.interrupter = interrupter or Interrupter()
        self.stop = threading.Event()
        """Set when the worker stops."""
        self._run: Run = self._run_here
        self._run_async: AsyncRun = self._run_in_loop
        middlewares: list[Middleware] = [import_middleware(path) for path in settings.middleware]
        wrappers = [children.keep_in, *middlewares] if middlewares else []
        for middleware in reversed(wrappers):  # the innermost first
            self._run = _wrap(self._run, middleware)
            self._run_async = _wrap_async(self._run_async, middleware)

    def execute(self, running: RunningAttempt) -> Attempt:
        # Each attempt has its own context, so that no context variable of a task reaches the next task.
        return contextvars.Context().run(self._execute, running)

    async def execute_async(self, running: RunningAttempt) -> Attempt:
        job_token, attempt_token = log_context.job.set(running.job), current_attempt.set(running)
        database_token = log_context.database.set(self.database)
        attempt = await self._execute_async(running)
        # Not in a `finally`, because a waiting coroutine that is closed ends in another context.
        log_context.database.reset(database_token)
        current_attempt.reset(attempt_token)
        log_context.job.reset(job_token)
        return attempt

    def _execute(self, running: RunningAttempt) -> Attempt:
        log_context.job.set(running.job)
        log_context.database.set(self.database)
        current_attempt.set(running)
        end_trace = tracing.attempt(running.job) if tracing.tracers else None
        running.worker, running.database, running.started = self.worker, self.database, time.monotonic()
        running.stop = self.stop
        task: Task[Any, Any] | None = None
        try:
            task = registry.get(running.job.task)
            running.timeout = task.timeout if running.job.timeout is None else running.job.timeout
            outcome = self.interrupter.run(running, self._run, task, running)
        except BaseException as error:  # even SystemExit ends only the attempt, and never the worker
            for part in running.parts:
                part.raised()
            outcome = self.outcome_of_error(running, task, error)
        for part in running.parts:
            outcome = part.ended(outcome)
        return self._attempt(running, outcome, time.monotonic(), end_trace)

    async def _execute_async(self, running: RunningAttempt) -> Attempt:
        end_trace = tracing.attempt(running.job) if tracing.tracers else None
        running.worker, running.database, running.started = self.worker, self.database, time.monotonic()
        running.stop = self.stop
        task: Task[Any, Any] | None = None
        try:
            task = registry.get(running.job.task)
            running.timeout = task.timeout if running.job.timeout is None else running.job.timeout
            with self.interrupter.coroutine(running):
                outcome = await self._run_async(task, running)
        except BaseException as error:
            if current_attempt.get() is not running:  # the coroutine was closed from outside: it has no outcome
                raise
            for part in running.parts:
                await sync_to_async(part.raised)()
            outcome = self.outcome_of_error(running, task, error)
        for part in running.parts:
            outcome = await sync_to_async(part.ended)(outcome)
        return self._attempt(running, outcome, time.monotonic(), end_trace)

    def stuck(self, running: RunningAttempt, stack: str) -> Attempt:
        """Return a failed attempt for a job that ignored its interruption. Called in the control loop's thread."""
        job, error, ended = running.job, running.error, time.monotonic()
        assert error is not None  # noqa: S101 (for the type checker: the attempt was interrupted)
        entry = self._entry(running, error, ended)
        entry["message"] = f"{error}, and did not end within {STUCK_AFTER:g} s more: it is stuck"
        entry["traceback"] = clean(stack, TRACEBACK_LIMIT)
        if running.completed:  # the attempt is stuck in code after its commit
            outcome = Outcome("failed", last_error=summary(error), error=entry)
        else:
            outcome = self._decide_with_timeout(job, registry.get(job.task), error, entry)
        return self._attempt(running, outcome, ended)

    def _run_here(self, task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        """Run the code that the middleware wraps: receivers of `job_started`, the task, and the commit of its outcome.

        A timeout or a cancel never interrupts the commit. If the commit then takes too long, the attempt is stuck.
        """
        job = running.job
        try:
            if wanted(AttemptStarted):
                send(AttemptStarted(job, self.worker, job.waited_ms(running.started), self.database))
            if task.atomic:
                return self._in_transaction(task, running)
            args, kwargs = _arguments(task, running)
            return _outcome_of_result(task, task.function(*args, **kwargs))
        finally:
            if children.is_child:
                children.leave()

    async def _run_in_loop(self, task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        """Do for an `async def` task what `_run_here` does for a `def` task."""
        job = running.job
        try:
            if wanted(AttemptStarted):
                send(AttemptStarted(job, self.worker, job.waited_ms(running.started), self.database))
            types = task.call_types
            if types is not None and types.uses_database:
                args, kwargs = await sync_to_async(_arguments)(task, running)
            else:
                args, kwargs = _arguments(task, running)
            return _outcome_of_result(task, await task.function(*args, **kwargs))
        finally:
            if children.is_child:
                children.leave()

    def _in_transaction(self, task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        """Run the task and write its outcome in one transaction, on this thread's connection to the database."""
        connection = connections[self.database]
        state_before = connection.in_atomic_block, list(connection.savepoint_ids)
        with transaction.atomic(using=self.database):
            with children:  # a process that the task has forked exits here, before the commit
                args, kwargs = _arguments(task, running)
                outcome = running.with_notes(_outcome_of_result(task, task.function(*args, **kwargs)))
            complete(self.database, Settlement(*running.job.ref, outcome, running.started), running)
        if (connection.in_atomic_block, connection.savepoint_ids) != state_before:
            raise TransactionManagementError("The task left a transaction open, so nothing of it is committed.")
        return outcome

    def _attempt(
        self, running: RunningAttempt, outcome: Outcome, ended: float, end_trace: tracing.Ended | None = None
    ) -> Attempt:
        """Return the attempt with its outcome. If the task has committed an outcome itself, that outcome counts."""
        committed, notes = running.completed, running.noted
        if committed is None:
            final_outcome = running.with_notes(outcome)
        else:
            if outcome.status != "completed":
                with contextlib.suppress(Exception):  # a logging filter or handler of the project
                    logs.raised_after_completion(running.job, outcome)
            later_notes = notes.take_all() if notes is not None and notes.has_changed else None
            final_outcome = committed if later_notes == committed.notes else replace(committed, notes=later_notes)
        if end_trace is not None:
            end_trace(final_outcome)
        return Attempt(
            running.job, final_outcome, running.started, ended, self.worker, committed is not None, self.database
        )

    def _entry(self, running: RunningAttempt, error: BaseException, ended: float) -> dict[str, Any]:
        job, started = running.job, running.started
        return error_entry(
            error,
            attempt=job.attempt,
            worker=self.worker,
            duration_ms=(ended - started) * 1000,
            wait_ms=job.waited_ms(started),
        )

    def outcome_of_error(self, running: RunningAttempt, task: Task[Any, Any] | None, error: BaseException) -> Outcome:
        if isinstance(error, EndAttempt):
            return error.outcome
        job = running.job
        entry = self._entry(running, error, time.monotonic())
        if task is None and isinstance(error, UnknownTask):
            return _postpone_unknown_task(job, entry)
        failed = Outcome("failed", last_error=summary(error), error=entry, exception=error)
        if task is None or isinstance(error, UnreadableArguments):
            return failed
        if isinstance(error, UnstorableResult):
            return _without_secrets(task, job, failed)
        return self.decide(job, task, error, entry)

    def _decide_with_timeout(
        self, job: ClaimedJob, task: Task[Any, Any], error: BaseException, entry: dict[str, Any]
    ) -> Outcome:
        """Call `decide` in a separate thread, because the backoff is code of the project, and may hang."""
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(self.decide(job, task, error, entry)), daemon=True)
        thread.start()
        thread.join(DECISION_SECONDS)
        if outcomes:
            return outcomes[0]
        return _decide_by_default(job, task, error, entry, f"did not return within {DECISION_SECONDS:g} s")

    def decide(self, job: ClaimedJob, task: Task[Any, Any], error: BaseException, entry: dict[str, Any]) -> Outcome:
        try:
            outcome = task.policy_for(job).decide(error, entry, attempt=job.attempt, max_attempts=job.max_attempts)
        except BaseException as backoff_error:  # the project's backoff raised
            return _decide_by_default(job, task, error, entry, f"raised {summary(backoff_error)}")
        return _without_secrets(task, job, _with_exception(outcome, error))


def _arguments(task: Task[Any, Any], running: RunningAttempt) -> tuple[list[Any], dict[str, Any]]:
    job, types = running.job, task.call_types
    args, kwargs = _read_arguments(job)
    if types is not None:
        args, kwargs = types.decode(args, kwargs)
    if task.takes_context:
        args.insert(0, task.context(JobContext.of(running, task.atomic), job))
    return args, kwargs


def _read_arguments(job: ClaimedJob) -> tuple[list[Any], dict[str, Any]]:
    """Decode the JSON in the row. Raises `UnreadableArguments` if somebody has written other JSON by hand."""
    try:
        args, kwargs = decode(job.args), decode(job.kwargs)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or thousands of levels
        raise UnreadableArguments(f"The stored arguments cannot be read: {shorten(str(error))}.") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UnreadableArguments("The stored arguments cannot be read: args must be a list, and kwargs an object.")
    return args, kwargs


def _decide_by_default(
    job: ClaimedJob, task: Task[Any, Any], error: BaseException, entry: dict[str, Any], problem: str
) -> Outcome:
    """Decide with the default backoff, because the task's backoff does not work, and log an error."""
    entry = entry | {"message": f"{entry['message']}\nThe task's backoff {problem}: the default one took its place."}
    policy = replace(task.policy, backoff=exponential())
    try:
        outcome = policy.decide(error, entry, attempt=job.attempt, max_attempts=job.max_attempts)
    except BaseException:  # a `Retry` subclass of the project has an `after` that raises
        outcome = policy.decide(Retry(), entry, attempt=job.attempt, max_attempts=job.max_attempts)
    last_error = shorten(f"{summary(error)} (the task's backoff {problem})")
    outcome = _without_secrets(task, job, _with_exception(replace(outcome, last_error=last_error), error))
    with contextlib.suppress(Exception):  # a logging filter or handler of the project
        logs.backoff_failed(job, outcome)
    return outcome


def _with_exception(outcome: Outcome, error: BaseException) -> Outcome:
    """Add the task's exception to the outcome, unless it is a `Retry`, `Snooze` or `Discard`."""
    return outcome if isinstance(error, Retry | Snooze | Discard) else replace(outcome, exception=error)


def _without_secrets(task: Task[Any, Any], job: ClaimedJob, outcome: Outcome) -> Outcome:
    """Mask the secret arguments in the outcome's error, which goes into the log and the row."""
    if outcome.error is None:
        return outcome
    mask_secrets = task.redacted(*_read_arguments(job)).text
    masked = {name: mask_secrets(outcome.error[name]) for name in ("message", "traceback")}
    return replace(outcome, last_error=mask_secrets(outcome.last_error or ""), error=outcome.error | masked)


def _outcome_of_result(task: Task[Any, Any], result: Any) -> Outcome:
    """Return the outcome of a task that returned this result. Raises `UnstorableResult` if it cannot be stored.

    A job whose result cannot be stored is not retried, because another attempt would repeat its effects.
    """
    if result is None:
        return COMPLETED
    try:
        text = task.encoded_result(result)
        if (size := size_of(text)) > settings.max_result_bytes:
            raise InvalidArguments(
                f"It is {size:,} bytes long, and SKIPQUEUE['MAX_RESULT_BYTES'] is {settings.max_result_bytes:,}. "
                "Store what is large elsewhere, and return its key."
            )
    except InvalidArguments as error:
        raise UnstorableResult(f"The task ran to its end, but its result cannot be kept: {error}") from None
    return Outcome("completed", result=text)


def _postpone_unknown_task(job: ClaimedJob, entry: dict[str, Any]) -> Outcome:
    """Schedule the job again, as code with its task may be deployed soon. After a grace period, fail the job."""
    unknown_since = job.locked_at if job.unknown_since is None else job.unknown_since
    message = f"No task is registered as {job.task!r}. {where_to_look(job.task)}"
    entry["message"] = message
    if job.locked_at - unknown_since >= settings.unknown_task_grace:
        return Outcome("failed", last_error=f"UnknownTask: {message}", error=entry)
    return Outcome(
        "scheduled", delay=UNKNOWN_TASK_DELAY, refund=1, last_error=f"UnknownTask: {message}", is_unknown=True
    )


Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]

Middleware = Callable[[ClaimedJob], Manager]
"""A function of the project that takes a job, and returns a context manager for one attempt. For an `async def` task it
may return an asynchronous context manager."""

Run = Callable[[Task[Any, Any], RunningAttempt], Outcome]

AsyncRun = Callable[[Task[Any, Any], RunningAttempt], Awaitable[Outcome]]


def import_middleware(path: str) -> Middleware:
    """Import the middleware at a dotted path. Raises `ImproperlyConfigured` if there is no middleware."""
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
    if any(is_kind(middleware) for is_kind in (isgeneratorfunction, isasyncgenfunction, iscoroutinefunction)):
        raise ImproperlyConfigured(
            f"SKIPQUEUE['MIDDLEWARE'] names {path!r}, which returns no context manager: decorate it with "
            "contextlib.contextmanager, or asynccontextmanager if it is an async def."
        )
    imported: Middleware = middleware
    return imported


def _not_a_manager(middleware: Middleware, returned: object) -> TypeError:
    name = f"{middleware.__module__}.{getattr(middleware, '__qualname__', type(middleware).__qualname__)}"
    reason = "is no context manager"
    if isinstance(returned, AbstractAsyncContextManager):
        reason = "is an asynchronous context manager, for `async def` tasks alone"
    return TypeError(f"The middleware {name} returned {returned!r}, which {reason}.")


def _wrap(run: Run, middleware: Middleware) -> Run:
    def run_in_manager(task: Task[Any, Any], running: RunningAttempt) -> Outcome:
        manager = middleware(running.job)
        if not isinstance(manager, AbstractContextManager):
            raise _not_a_manager(middleware, manager)
        with manager:
            return run(task, running)
        return COMPLETED  # the manager suppressed the task's exception

    return run_in_manager


def _wrap_async(run: AsyncRun, middleware: Middleware) -> AsyncRun:
    """Wrap the run of an `async def` task in the context manager of a middleware."""

    async def run_in_manager(task: Task[Any, Any], running: RunningAttempt) -> Outcome:
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

    return run_in_manager

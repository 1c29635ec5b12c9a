"""Middleware: context managers of the project around each attempt."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings

from django_skipqueue import Discard, job
from django_skipqueue.exceptions import JobTimeout
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.outcomes import Outcome
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.worker.attempts.executor import Executor, import_middleware
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ...harness.processes import ManagePy, wait_for_statuses
from .test_interruption import keep_enforcing, stay_busy

THIS_MODULE = __name__
calls: list[str] = []  # what the middlewares and the tasks of these tests have done, in order
language: ContextVar[str] = ContextVar("language", default="none")


@contextlib.contextmanager
def outer(claimed: ClaimedJob) -> Iterator[None]:
    calls.append(f"outer {claimed.task}")
    try:
        yield
    except BaseException as error:
        calls.append(f"outer {type(error).__name__}")
        raise
    else:
        calls.append("outer ends")


@contextlib.contextmanager
def inner(claimed: ClaimedJob) -> Iterator[None]:
    calls.append(f"inner {claimed.attempt}")
    language.set("de")
    yield
    calls.append("inner ends")


class AsyncMiddleware:
    """A context manager for `async def` tasks alone."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self._task = claimed.task

    async def __aenter__(self) -> None:
        await asyncio.sleep(0)
        calls.append(f"async {self._task}")

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        calls.append("async ends")


def suppressing(claimed: ClaimedJob) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(ZeroDivisionError)


def refusing(claimed: ClaimedJob) -> contextlib.AbstractContextManager[None]:
    raise Discard("not today")


@contextlib.contextmanager
def replacing(claimed: ClaimedJob) -> Iterator[None]:
    try:
        yield
    except ZeroDivisionError as error:
        raise LookupError("replaced") from error


not_callable = "a string"


def undecorated(claimed: ClaimedJob) -> Iterator[None]:
    yield


async def undecorated_async(claimed: ClaimedJob) -> AsyncIterator[None]:
    yield


def returns_nothing(claimed: ClaimedJob) -> None: ...


def register_task(function: Callable[..., Any], **options: Any) -> Any:
    """Registers the function as a task, as if it were a function of this module."""
    function.__qualname__ = function.__name__
    decorate: Any = job(name=function.__name__, **options)
    return decorate(function)


@pytest.fixture(autouse=True)
def _clear_calls() -> None:
    calls.clear()


def outcome_of(task: Any, *names: str, **fields: Any) -> Outcome:
    """The outcome of one attempt of the task within these middlewares of this module."""
    claimed_job = ClaimedJob(
        id=7, lease=1, task=task.name, queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
        priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
    )._replace(**fields)  # fmt: skip
    with override_settings(SKIPQUEUE={"MIDDLEWARE": [f"{THIS_MODULE}.{name}" for name in names]}):
        executor = Executor(worker="w", database="default")
        running_attempt = RunningAttempt(claimed_job)
        if task.is_async:
            return asyncio.run(executor.execute_async(running_attempt)).outcome
        return executor.execute(running_attempt).outcome


@pytest.fixture
def divide(registry: Registry) -> Any:
    @register_task
    def divide() -> float:
        calls.append("task")
        return 1 / 0

    return divide


@pytest.fixture(params=["def", "async def"])
def speak(request: pytest.FixtureRequest, registry: Registry) -> Any:
    """A task that returns the language that a middleware has set."""
    if request.param == "def":

        @register_task
        def speak() -> str:
            calls.append("task")
            return language.get()
    else:

        @register_task
        async def speak() -> str:
            calls.append("task")
            return language.get()

    return speak


def test_the_first_middleware_is_outermost_and_the_task_sees_their_context_variables(speak: Any) -> None:
    assert outcome_of(speak, "outer", "inner").result == '"de"'
    assert calls == ["outer speak", "inner 1", "task", "inner ends", "outer ends"]
    assert language.get() == "none", "nothing after the attempt sees it"


def test_the_error_names_a_middleware_that_returns_no_context_manager(speak: Any) -> None:
    error = outcome_of(speak, "returns_nothing").last_error
    assert (
        error == f"TypeError: The middleware {THIS_MODULE}.returns_nothing returned None, which is no context manager."
    )


def test_middleware_sees_what_the_task_raises(divide: Any) -> None:
    outcome = outcome_of(divide, "outer", "inner")
    assert (outcome.status, outcome.last_error) == ("failed", "ZeroDivisionError: division by zero")
    assert calls == ["outer divide", "inner 1", "task", "outer ZeroDivisionError"]


def test_an_exception_of_a_middleware_replaces_the_exception_of_the_task(divide: Any) -> None:
    assert outcome_of(divide, "replacing").last_error == "LookupError: replaced"


def test_a_middleware_that_suppresses_the_exception_completes_the_job(divide: Any) -> None:
    outcome = outcome_of(divide, "outer", "suppressing")
    assert (outcome.status, outcome.result) == ("completed", None)
    assert calls == ["outer divide", "task", "outer ends"]


def test_a_middleware_that_raises_discard_discards_the_job(speak: Any) -> None:
    outcome = outcome_of(speak, "outer", "refusing", "inner")
    assert (outcome.status, outcome.last_error) == ("discarded", "not today")
    assert calls == ["outer speak", "outer Discard"]


def test_an_asynchronous_middleware_is_awaited(registry: Registry) -> None:
    @register_task
    async def aspeak() -> str:
        calls.append("task")
        return language.get()

    assert outcome_of(aspeak, "AsyncMiddleware", "inner").result == '"de"'
    assert calls == ["async aspeak", "inner 1", "task", "inner ends", "async ends"]


def test_an_asynchronous_middleware_fails_the_jobs_of_def_tasks(divide: Any) -> None:
    outcome = outcome_of(divide, "AsyncMiddleware")
    assert outcome.status == "failed"
    error = outcome.last_error or ""
    assert error.startswith(f"TypeError: The middleware {THIS_MODULE}.AsyncMiddleware returned ")
    assert error.endswith("which is an asynchronous context manager, for `async def` tasks alone.")
    assert not calls


def test_a_middleware_that_hangs_is_interrupted_by_the_time_limit(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task never begins, because the middleware hangs."""

    @register_task
    def soon() -> None:
        calls.append("task")

    @contextlib.contextmanager
    def hanging(claimed: ClaimedJob) -> Iterator[None]:
        stay_busy(60)
        yield

    monkeypatch.setattr(f"{THIS_MODULE}.outer", hanging)
    claimed = ClaimedJob(
        id=7, lease=1, task="soon", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=1,
        priority=0, run_after=0.0, locked_at=0.0, metadata="{}", timeout=0.01,
    )  # fmt: skip
    with override_settings(SKIPQUEUE={"MIDDLEWARE": [f"{THIS_MODULE}.outer"]}):
        executor = Executor(worker="w", database="default")
        end = keep_enforcing(executor.interrupter)
        try:
            outcome = executor.execute(RunningAttempt(claimed)).outcome
        finally:
            end()
    assert isinstance(outcome.exception, JobTimeout)
    assert not calls


@pytest.mark.django_db(transaction=True)
def test_an_atomic_task_is_committed_within_the_middleware(registry: Registry) -> None:
    @partial(register_task, atomic=True)
    def commits() -> None:
        transaction.on_commit(lambda: calls.append("committed"))

    commits.defer()
    with override_settings(SKIPQUEUE={"MIDDLEWARE": [f"{THIS_MODULE}.outer"]}):
        (finished_job,) = run_jobs()
    assert (finished_job.status, calls) == ("completed", ["outer commits", "committed", "outer ends"])


@pytest.mark.django_db
def test_run_jobs_calls_the_middleware(speak: Any) -> None:
    speak.defer()
    with override_settings(SKIPQUEUE={"MIDDLEWARE": [f"{THIS_MODULE}.outer"]}):
        run_jobs()
    assert calls == ["outer speak", "task", "outer ends"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{THIS_MODULE}.nowhere", "cannot be imported"),
        ("no_such_module.timed", "cannot be imported"),
        ("timed", "cannot be imported"),
        (f"{THIS_MODULE}.not_callable", "which is str: it must be a function or a class"),
    ],
)
def test_a_setting_that_names_no_middleware_is_refused(path: str, message: str) -> None:
    with (
        override_settings(SKIPQUEUE={"MIDDLEWARE": [path]}),
        pytest.raises(ImproperlyConfigured, match=f"'{path}'.*{message}"),
    ):
        import_middleware(path)


JOBS = """
import contextlib
import contextvars
import os

from django_skipqueue import job

MARK = contextvars.ContextVar("MARK")


@contextlib.contextmanager
def marking(claimed):
    MARK.set(str(claimed.id))
    yield


@contextlib.contextmanager
def forking(claimed):
    yield
    if claimed.task.endswith("plain") and os.fork() == 0:
        raise SystemExit(0)


@job
def plain():
    return MARK.get()


@job
async def coroutine():
    return MARK.get()
"""


@pytest.mark.django_db(transaction=True)
def test_a_child_that_a_middleware_forks_in_a_worker_writes_no_outcome(runworker: Callable[..., ManagePy]) -> None:
    jobs = [Job.objects.enqueue(f"extra.jobs.{name}") for name in ("plain", "coroutine")]
    middleware = ["extra.jobs.marking", "extra.jobs.forking"]
    process = runworker("--drain", jobs=JOBS, skipqueue={"MIDDLEWARE": middleware})
    assert process.wait() == 0
    wait_for_statuses(completed=2)
    assert [Job.objects.get(pk=enqueued_job.pk).result for enqueued_job in jobs] == [
        str(enqueued_job.pk) for enqueued_job in jobs
    ]

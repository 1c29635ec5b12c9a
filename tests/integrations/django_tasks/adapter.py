"""Runs Django's own tests of its task framework, unchanged, against the backend of this package.

Django's tests use two backends: one keeps results in a list, and one runs a task as soon as it is enqueued. Two
backends of this module replace them: the list is the job table, and the production executor runs the task.
"""

import asyncio
import functools
import importlib
import logging
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import django
from django.db import connections
from django.db.models.functions import Now
from django.test import override_settings

from django_skipqueue.integrations.django_tasks.backend import SkipQueueBackend
from django_skipqueue.integrations.django_tasks.mapping import TASK_STATUSES, UnreadResult, task_status
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job

from .running import run_next

P = ParamSpec("P")
R = TypeVar("R")

LEFT_OUT = {
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "ours can: supports_get_result",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "ours can: supports_get_result",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "ours can: supports_defer",
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "the immediate backend runs in the caller's thread, whose Ctrl-C it hands on; a worker hears Ctrl-C in its "
        "control loop, and a task that raises KeyboardInterrupt in a thread of the pool has failed"
    ),
}
"""Django's tests that are not run, each with the reason. All other tests are run, also tests of a later Django."""

if django.VERSION < (6, 0):
    wording = "the backport writes “async tasks”, Django “async Tasks”"
    LEFT_OUT |= {
        "test_custom_backend.CustomBackendTestCase.test_enqueue_async_task_on_non_async_backend": wording,
        "test_dummy_backend.DummyBackendTestCase.test_validate_disallowed_async_task": wording,
    }
if sys.version_info < (3, 12):
    LEFT_OUT["test_custom_backend.CustomBackendTestCase.test_no_enqueue"] = "expects a message of Python 3.12"


def in_any_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that sends queries. If an event loop runs in this thread, the function runs in another thread."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function(*args, **kwargs)
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(function, *args, **kwargs).result()
            finally:
                thread.submit(connections.close_all).result()

    return call


class StoredResult(UnreadResult):
    """An item of the dummy backend's list: a change of the item changes the row."""

    @property
    @in_any_thread
    def status(self) -> Any:
        return task_status(Job.objects.get(pk=self.id).status)

    @status.setter
    @in_any_thread
    def status(self, value: Any) -> None:
        (status,) = (our_status for our_status, djangos_status in TASK_STATUSES.items() if djangos_status == value)
        Job.objects.filter(pk=self.id).update(status=status, finished_at=Now())


class ListingBackend(SkipQueueBackend):
    """Replaces Django's DummyBackend: `results` and `clear()` use our table."""

    in_place_of = "django.tasks.backends.dummy.DummyBackend"

    @property
    @in_any_thread
    def results(self) -> list[StoredResult]:
        return [self._stored(job) for job in Job.objects.order_by("id")]

    @in_any_thread
    def get_result(self, result_id: str) -> Any:
        return super().get_result(result_id)

    @in_any_thread
    def clear(self) -> None:
        Job.objects.all().delete()

    def _stored(self, job: Job) -> StoredResult:
        result = StoredResult.__new__(StoredResult)
        vars(result).update(_database="default", _attempt=job.attempts)
        object.__setattr__(result, "id", str(job.pk))
        object.__setattr__(result, "task", self.get_result(str(job.pk)).task)
        result.read()
        return result


class RunningBackend(SkipQueueBackend):
    """Replaces Django's ImmediateBackend: enqueues, claims, executes, settles, sends signals, and reads the result."""

    in_place_of = "django.tasks.backends.immediate.ImmediateBackend"

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        Job.objects.queued().delete()  # jobs that the tests of `ListingBackend` have left
        result = super().enqueue(task, args, kwargs)
        run_next(task.queue_name)
        return self.get_result(result.id)


def run_all(folder: Path) -> tuple[unittest.TestResult, set[str], set[str]]:
    """Run the tests in `folder/tasks`. Returns the outcome, the names of the tests that ran, and the names left out."""
    left_out: set[str] = set()
    with _adapted(folder) as modules:
        tests: list[unittest.TestCase] = []
        for module in modules:
            for test in _tests_in(unittest.defaultTestLoader.loadTestsFromModule(module)):
                if _name(test) in LEFT_OUT:
                    left_out.add(_name(test))
                else:
                    type(test).databases = {"default"}  # most of Django's tests allow no database
                    tests.append(test)
        ran = {_name(test) for test in tests}
        result = unittest.TestResult()
        unittest.TestSuite(tests).run(result)
    return result, ran, left_out


@contextmanager
def _adapted(folder: Path) -> Iterator[list[ModuleType]]:
    """Yield the modules of Django's tests, with our two backends in place of Django's."""
    with ExitStack() as stack:
        stack.callback(_forget_modules)
        stack.enter_context(mock.patch.dict(registry.by_name))
        stack.enter_context(mock.patch.object(sys, "path", [str(folder), *sys.path]))
        if django.VERSION < (6, 0):
            stack.enter_context(_backport_in_django())
        for backend in (ListingBackend, RunningBackend):
            stack.enter_context(mock.patch(backend.in_place_of, backend))
        # One attempt for each job, as with Django's immediate backend.
        tasks_setting = {"default": {"BACKEND": ListingBackend.in_place_of}}
        stack.enter_context(override_settings(SKIPQUEUE={"MAX_ATTEMPTS": 1}, TASKS=tasks_setting))
        yield [importlib.import_module(f"tasks.{path.stem}") for path in sorted((folder / "tasks").glob("test_*.py"))]


@contextmanager
def _backport_in_django() -> Iterator[None]:
    """Before Django 6.0: import the backport under the names that Django's tests use."""
    backend_modules = (".backends", ".backends.base", ".backends.dummy", ".backends.immediate")
    module_names = ("", ".base", ".exceptions", ".signals", *backend_modules)
    modules = {f"django.tasks{name}": importlib.import_module(f"django_tasks{name}") for name in module_names}
    exceptions = modules["django.tasks.exceptions"]
    exceptions_by_djangos_name = {
        name: getattr(exceptions, f"{name}Error") for name in ("InvalidTask", "InvalidTaskBackend")
    }
    logger_by_name = logging.Logger.manager.loggerDict
    with (
        mock.patch.multiple(exceptions, create=True, **exceptions_by_djangos_name),
        mock.patch.dict(logger_by_name, {"django.tasks": logging.getLogger("django_tasks")}),
    ):
        sys.modules.update(modules)
        with mock.patch.object(django, "tasks", modules["django.tasks"], create=True):
            yield


def _forget_modules() -> None:
    packages = ("tasks",) if django.VERSION >= (6, 0) else ("tasks", "django.tasks")
    prefixes = tuple(f"{package}." for package in packages)
    for name in [name for name in sys.modules if name in packages or name.startswith(prefixes)]:
        del sys.modules[name]


def _tests_in(suite: unittest.TestSuite) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests_in(test)
        else:
            yield test


def _name(test: unittest.TestCase) -> str:
    return test.id().removeprefix("tasks.")

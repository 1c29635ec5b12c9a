"""`django_skipqueue.testing` with Django's tasks."""

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.test import TestCase

from django_skipqueue.exceptions import InvalidArguments, InvalidTask
from django_skipqueue.testing import assert_deferred, assert_not_deferred, capture_deferred, run_inline, run_jobs

from .app import tasks
from .conftest import FRAMEWORK

framework: Any = import_module(FRAMEWORK)


class TaskTests(TestCase):
    def test_assert_deferred_finds_a_django_task_by_its_arguments(self) -> None:
        tasks.add.enqueue(1, b=2)
        task_or_path: list[Any] = [tasks.add, tasks.add.module_path]
        for task in task_or_path:
            assert_deferred(task, 1, b=2, count=1)
            assert_not_deferred(task, 2)
            with pytest.raises(InvalidArguments):
                assert_not_deferred(task, c=2)

    def test_assert_deferred_compares_the_options_of_using(self) -> None:
        add: Any = tasks.add
        add.using(priority=5, run_after=timedelta(hours=1)).enqueue(1)
        assert_deferred(add.using(priority=5))
        assert_deferred(add.using(run_after=timedelta(hours=1)))
        assert_not_deferred(add.using(priority=4))
        assert_not_deferred(add.using(queue_name="mail", backend="mail"))

    def test_run_jobs_runs_django_tasks_and_returns_their_results(self) -> None:
        results: list[Any] = [tasks.add.enqueue(1, 2), tasks.aadd.enqueue(3, 4)]
        assert [job.result for job in run_jobs()] == [3, 7]
        for result in results:
            result.refresh()
        assert [result.return_value for result in results] == [3, 7]

    def test_run_inline_runs_a_django_task_when_it_is_enqueued(self) -> None:
        with run_inline(), capture_deferred() as deferred:
            result = tasks.add.enqueue(1, 2)
            result.refresh()
            assert result.return_value == 3
        assert [job.args for job in deferred] == [[1, 2]]

    def test_assert_deferred_refuses_a_task_of_another_backend(self) -> None:
        task_of_other_backend: Any = framework.task(backend="elsewhere")(a_function)
        with pytest.raises(InvalidTask, match="does TASKS have"):
            assert_deferred(task_of_other_backend, 1)


def a_function(number: int) -> None:
    """Django demands that a task is a function of a module."""

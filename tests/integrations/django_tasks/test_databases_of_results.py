"""Django's tasks with several databases: the ids of results name the database."""

from typing import Any

import pytest

from django_skipqueue import Batch
from django_skipqueue.integrations.django_tasks.framework import TaskResultDoesNotExist
from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs

from .app import tasks as typed_tasks

tasks: Any = typed_tasks
"""Typed as `Any`, because mypy does not know the methods that we add to Django's tasks."""

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def _two_databases(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "PLACEMENT": "spread"}


def test_results_are_found_by_their_handles() -> None:
    results = [tasks.add.enqueue(1, number) for number in range(4)]
    assert {result.id.partition(":")[0] for result in results} == {"default", "other"}
    assert {result.database for result in results} == {"default", "other"}
    run_jobs()
    for number, result in enumerate(results):
        assert Job.objects.by_handle(result.id).args == [1, number]
        result.refresh()
        assert result.return_value == 1 + number
        assert tasks.add.get_result(result.id) == result


def test_an_id_without_a_database_is_in_the_default_database() -> None:
    results = [tasks.add.enqueue(1, 2) for _ in range(2)]  # one in each database
    [result] = [result for result in results if result.id.startswith("default:")]
    assert tasks.add.get_result(result.id.partition(":")[2]) == result


@pytest.mark.parametrize("id", ["nowhere:1", "default:", ":1", "default:01", "other:1x", "other:" + "9" * 30])
def test_a_malformed_id_has_no_result(id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(id)


def test_with_one_database_ids_are_numbers(settings: Any) -> None:
    settings.SKIPQUEUE = {}
    assert tasks.add.enqueue(1, 2).id.isdecimal()


def test_a_job_that_waits_for_a_result_goes_to_the_database_of_the_result() -> None:
    for _ in range(4):
        first = tasks.add.enqueue(1, 2)
        call = tasks.add.s(3, 4).after(first)
        assert call.defer()._state.db == first.id.partition(":")[0]


def test_a_batch_is_found_by_a_result() -> None:
    for _ in range(2):
        with Batch() as batch:
            result = tasks.add.enqueue(1, 2)
        found_batch = Batch.of(result)
        assert found_batch is not None
        assert (found_batch.id, found_batch.database) == (batch.id, batch.database)

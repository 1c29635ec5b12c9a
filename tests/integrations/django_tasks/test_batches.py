"""Django's tasks in batches: as jobs, and as callbacks."""

from typing import Any

import pytest

from django_skipqueue import Batch
from django_skipqueue.exceptions import InvalidArguments, InvalidOption
from django_skipqueue.integrations.django_tasks.framework import TaskResultStatus, task_enqueued, task_finished
from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs

from .app import tasks as typed_tasks

tasks: Any = typed_tasks
"""Typed as `Any`, because mypy does not know the methods that we add to Django's tasks."""

pytestmark = pytest.mark.django_db


def test_tasks_belong_to_a_batch_and_are_its_callbacks() -> None:
    with Batch(on_success=tasks.echo.s({"a": 1}), on_finish=tasks.add.using(priority=7).s(1, b=2)) as batch:
        result = tasks.add.enqueue(3)
        assert tasks.add.s(4).defer().batch_id == batch.id
    assert Batch.of(result).id == batch.id  # type: ignore[union-attr]
    finished_jobs = run_jobs()
    assert [(job.task.rpartition(".")[2], job.result, job.priority) for job in finished_jobs] == [
        ("add", 3, 0),
        ("add", 4, 0),
        ("add", 3, 7),
        ("echo", {"a": 1}, 0),
    ]
    assert batch.progress().completed == 2


@pytest.mark.django_db(databases=["default", "other"])
def test_a_result_used_as_a_predecessor_must_be_in_the_database_of_the_new_job() -> None:
    with Batch(database="other") as batch:
        result = tasks.add.using(backend="other").enqueue(1)
    found_batch = Batch.of(result)
    assert found_batch is not None
    assert (found_batch.id, found_batch.database) == (batch.id, "other")
    with pytest.raises(InvalidOption, match=f"job {result.id} of the database 'other', but the new job is in"):
        tasks.add.s(1).after(result).defer()


@pytest.mark.django_db(databases=["default", "other"])
def test_the_batch_of_a_result_is_looked_up_where_its_job_is() -> None:
    with Batch(database="other", name="elsewhere") as batch:
        result = tasks.batch_name.using(backend="other").enqueue()
    found_batch = Batch.of(result)
    assert found_batch is not None
    assert (found_batch.id, found_batch.database) == (batch.id, "other")
    run_jobs(database="other")
    result.refresh()
    assert result.return_value == "elsewhere"


def test_a_call_without_a_required_argument_is_refused_at_once() -> None:
    with pytest.raises(InvalidArguments, match="missing"):
        tasks.add.s()
    with pytest.raises(InvalidArguments, match="missing"):
        Batch(on_success=tasks.add)
    assert not Job.objects.exists()


def test_task_finished_is_sent_for_a_job_discarded_with_its_predecessor() -> None:
    received_results: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        received_results.append((task_result.id, task_result.status))

    predecessor = tasks.fail.s().defer()
    successor = tasks.add.s(1).after(predecessor, on_failure="discard").defer()
    predecessor.discard()
    task_finished.connect(receive)
    try:
        run_jobs()
    finally:
        task_finished.disconnect(receive)
    assert received_results == [(str(successor.pk), TaskResultStatus.FAILED)]


def test_deferring_a_call_of_a_django_task_sends_task_enqueued() -> None:
    enqueued_ids: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        enqueued_ids.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        job = tasks.add.s(1).defer()
    finally:
        task_enqueued.disconnect(receive)
    assert enqueued_ids == [str(job.pk)]

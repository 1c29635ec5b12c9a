"""The names of queues and tasks that pages and commands offer."""

import pytest

from django_skipqueue import job
from django_skipqueue.console import queues_and_workers
from django_skipqueue.console.queues_and_workers import known_queue_names, known_task_names
from django_skipqueue.jobs.registry import Registry

from ..app.rows import make_job, make_worker

pytestmark = pytest.mark.django_db


def do_nothing() -> None:
    """A task that a test registers."""


def test_a_queue_is_known_by_its_jobs_its_workers_or_its_tasks(registry: Registry) -> None:
    job(name="t", queue_name="of a task")(do_nothing)
    make_job(queue_name="of a queued job")
    make_job("failed", queue_name="of a failed job")
    make_worker(queues=["of a worker"])
    assert known_queue_names() == ["of a failed job", "of a queued job", "of a task", "of a worker"]


def test_a_task_is_known_by_the_code_or_by_its_last_jobs(registry: Registry) -> None:
    job(name="of the code")(do_nothing)
    make_job("completed", task="of a job")
    make_job("failed", task="of a failed job")
    assert known_task_names() == ["of a failed job", "of a job", "of the code"]


def test_names_of_tasks_are_read_from_a_sample_of_the_jobs(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_and_workers, "MOST_NAMES_OFFERED", 1)
    make_job("completed", task="old")
    make_job("failed", task="failed long ago, but last")
    make_job("completed", task="new")
    assert known_task_names() == ["failed long ago, but last", "new"]

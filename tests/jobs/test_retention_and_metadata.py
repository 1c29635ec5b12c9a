"""`@job(retention=…)`: how long a job is kept. `.using(metadata=…)`: the data that its links can use."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils.timezone import now

from django_skipqueue import chain, job
from django_skipqueue.console.admin.jobs.links import links_of_job
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.integrations import opentelemetry, sentry
from django_skipqueue.integrations.django_tasks import mapping
from django_skipqueue.jobs import options
from django_skipqueue.jobs.task import Task
from django_skipqueue.models import Job
from django_skipqueue.parts.schedules import fire
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("registry")]


def send(order_id: int) -> None: ...


def make_task(**job_options: Any) -> Task[[int], None]:
    decorate: Any = job(**job_options)
    task: Task[[int], None] = decorate(send)
    return task


def test_finished_jobs_are_deleted_after_the_retention_of_their_task() -> None:
    task_with_retention = make_task(retention={"completed": 0, "failed": timedelta(hours=1), "discarded": 60.5})
    task_with_retention.defer(1)
    task_with_retention.defer_many([[2]])
    job_without_retention = make_task(name="kept").defer(3)
    assert job_without_retention.retention is None
    stored_retentions = [job.retention for job in Job.objects.exclude(pk=job_without_retention.pk)]
    assert stored_retentions == [{"completed": 0.0, "failed": 3600.0, "discarded": 60.5}] * 2
    run_jobs()
    assert Store("default").prune() == {"completed": 2}
    assert Job.objects.get().pk == job_without_retention.pk


@pytest.mark.parametrize(
    ("retention", "problem"),
    [
        (60, "retention must be a dict of finished statuses, not 60."),
        ({"complete": 60}, "retention has no status 'complete'"),
        ({"failed": "long"}, r"retention\['failed'\] must be a timedelta, seconds"),
        (
            {"completed": timedelta(days=2)},
            r"is longer than SKIPQUEUE\['RETENTION'\] says for all jobs, 1 day, 0:00:00",
        ),
        ({"completed": None}, r"retention\['completed'\] is longer than"),
    ],
)
def test_a_malformed_retention_or_one_longer_than_the_settings_is_refused(retention: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        make_task(retention=retention)


def test_a_retention_of_none_is_accepted_if_the_settings_keep_jobs_forever(settings: Any) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"failed": None}}
    assert make_task(retention={"failed": None}).defer(1).retention is None


def test_links_use_the_metadata_of_a_call(settings: Any) -> None:
    settings.SKIPQUEUE = {"LINKS": {"Order": "https://shop.example/orders/{metadata[order_id]}/"}}
    deferred_job = make_task().using(metadata={"order_id": 42}).defer(1)
    (stored_job,) = Job.objects.all()
    assert deferred_job.metadata == stored_job.metadata == {"order_id": 42}
    assert links_of_job(stored_job, now()) == [("Order", "https://shop.example/orders/42/")]


def test_defer_many_and_chain_take_metadata_too() -> None:
    task = make_task().using(metadata={"order_id": 42})
    task.defer_many([[1], [2]])
    chain(task.s(3), task.s(4)).defer()
    assert [deferred_job.metadata for deferred_job in Job.objects.all()] == [{"order_id": 42}] * 4


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("order 42", "metadata must be a dict, not str."),
        ({"order": object()}, "metadata"),
        ({"order": 42, "backend": "stripe"}, "metadata cannot have the key 'backend': the queue uses it."),
        ({"text": "x" * 4_000}, "metadata is 4,011 bytes long, and at most 4,000 are allowed."),
    ],
)
def test_metadata_must_be_a_dict_of_json_of_at_most_4000_bytes(metadata: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        make_task().using(metadata=metadata)


def test_the_reserved_metadata_keys_are_the_keys_that_the_package_uses() -> None:
    used_keys = {
        mapping.ALIAS,
        mapping.DEFERRED,
        opentelemetry.OPENTELEMETRY_KEY,
        fire.SCHEDULE_METADATA_KEY,
        sentry.SENTRY_KEY,
    }
    assert used_keys == options.RESERVED_METADATA


def test_metadata_is_refused_by_the_decorator_and_retention_by_using() -> None:
    with pytest.raises(TypeError, match="metadata"):
        make_task(metadata={"order_id": 42})
    with pytest.raises(TypeError, match="retention"):
        make_task().using(retention={"completed": 0})  # type: ignore[call-arg]

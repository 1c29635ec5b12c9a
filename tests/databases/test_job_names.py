"""Errors and signals name a job with its database, if several databases hold queues."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_skipqueue import job, unique_by
from django_skipqueue.events.log_format import job_name
from django_skipqueue.exceptions import LeaseLost, UniqueKeyTaken
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job
from django_skipqueue.signals import job_started
from django_skipqueue.testing import run_jobs
from django_skipqueue.worker import by_hand as running

from ..app import jobs
from ..app.rows import make_job
from ..batches.jobs import see_results

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def _two_databases(placed: Callable[..., None]) -> None:
    placed()


def claimed() -> Job:
    [job] = Job.objects.db_manager("other").claim(queue_names=["default"], worker_id="w:1")
    return job


def test_a_name_is_the_handle_or_the_id_alone(settings: Any) -> None:
    assert (job_name("other", 42), make_job(using="other", pk=42).shown_id) == ("other:42", "other:42")
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    assert job_name("other", 42) == "other:42"
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert (job_name("other", 42), Job.objects.using("other").get().shown_id) == ("42", "42")


def pay(account_id: int) -> None:
    """A task with a key takes this function."""


@pytest.mark.parametrize("is_many", [False, True])
def test_the_holder_of_a_unique_key(registry: Registry, *, is_many: bool) -> None:
    task: Any = job(unique=unique_by("account_id"), on_conflict="raise", database="other")(pay)
    holder = task.defer(1)
    with pytest.raises(UniqueKeyTaken, match=rf"held by job {holder.handle}\.$") as caught:
        task.defer_many([(1,)]) if is_many else task.defer(1)
    assert (caught.value.job_id, caught.value.handle) == (holder.pk, f"other:{holder.pk}")


def test_a_lease_that_is_lost() -> None:
    jobs.noop.using(database="other").defer()
    job = claimed()
    Job.objects.using("other").get().cancel()
    for act in (job.complete, lambda: running.run(job)):
        with pytest.raises(LeaseLost, match=f"^Job other:{job.pk} is no longer held"):
            act()


def test_a_job_that_was_not_claimed() -> None:
    job = jobs.noop.using(database="other").defer()
    with pytest.raises(LeaseLost, match=f"^Job other:{job.pk} is queued"):
        running.run(job)


def test_a_result_that_is_lost() -> None:
    first = jobs.add.using(database="other").defer(1)
    run_jobs()
    name = first.handle
    last = see_results.using(database="other", after=[first], max_attempts=1).defer()
    first.delete()
    run_jobs()
    last.refresh_from_db()
    message = f"The result of job {name}, which job other:{last.pk} has waited for, no longer exists."
    assert last.last_error == f"ResultLost: {message}"


@pytest.fixture
def started() -> Iterator[list[str]]:
    """The databases that `job_started` has carried."""
    databases: list[str] = []

    def receive(**event: Any) -> None:
        databases.append(event["database"])

    job_started.connect(receive)
    yield databases
    job_started.disconnect(receive)


def test_the_start_of_an_attempt(started: list[str]) -> None:
    for alias in ("default", "other"):
        jobs.noop.using(database=alias).defer()
    run_jobs()
    assert started == ["default", "other"]

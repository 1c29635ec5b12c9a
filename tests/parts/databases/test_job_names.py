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
from django_skipqueue.worker import by_hand

from ...app import jobs
from ...app.rows import make_job
from ..batches.jobs import see_results

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def _two_databases(set_placement: Callable[..., None]) -> None:
    set_placement()


def claim_job() -> Job:
    [job] = Job.objects.db_manager("other").claim(queue_names=["default"], worker_id="w:1")
    return job


def test_the_name_of_a_job_has_its_database_only_with_several_databases(settings: Any) -> None:
    assert (job_name("other", 42), make_job(using="other", pk=42).shown_id) == ("other:42", "other:42")
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    assert job_name("other", 42) == "other:42"
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert (job_name("other", 42), Job.objects.using("other").get().shown_id) == ("42", "42")


def pay(account_id: int) -> None:
    """The function of a task with a unique key."""


@pytest.mark.parametrize("is_many", [False, True])
def test_unique_key_taken_names_the_holding_job_with_its_database(registry: Registry, *, is_many: bool) -> None:
    task: Any = job(unique=unique_by("account_id"), on_conflict="raise", database="other")(pay)
    holder = task.defer(1)
    with pytest.raises(UniqueKeyTaken, match=rf"held by job {holder.handle}\.$") as caught:
        task.defer_many([(1,)]) if is_many else task.defer(1)
    assert (caught.value.job_id, caught.value.handle) == (holder.pk, f"other:{holder.pk}")


def test_lease_lost_names_the_job_with_its_database() -> None:
    jobs.noop.using(database="other").defer()
    job = claim_job()
    Job.objects.using("other").get().cancel()
    for use_lease in (job.complete, lambda: by_hand.run(job)):
        with pytest.raises(LeaseLost, match=f"^Job other:{job.pk} is no longer held"):
            use_lease()


def test_running_an_unclaimed_job_names_it_with_its_database() -> None:
    job = jobs.noop.using(database="other").defer()
    with pytest.raises(LeaseLost, match=f"^Job other:{job.pk} is queued"):
        by_hand.run(job)


def test_result_lost_names_both_jobs_with_their_database() -> None:
    predecessor = jobs.add.using(database="other").defer(1)
    run_jobs()
    handle = predecessor.handle
    dependant = see_results.using(database="other", after=[predecessor], max_attempts=1).defer()
    predecessor.delete()
    run_jobs()
    dependant.refresh_from_db()
    message = f"The result of job {handle}, which job other:{dependant.pk} has waited for, no longer exists."
    assert dependant.last_error == f"ResultLost: {message}"


@pytest.fixture
def databases_of_started_jobs() -> Iterator[list[str]]:
    """The databases of the received `job_started` signals."""
    databases: list[str] = []

    def receive(**event: Any) -> None:
        databases.append(event["database"])

    job_started.connect(receive)
    yield databases
    job_started.disconnect(receive)


def test_job_started_carries_the_database(databases_of_started_jobs: list[str]) -> None:
    for alias in ("default", "other"):
        jobs.noop.using(database=alias).defer()
    run_jobs()
    assert databases_of_started_jobs == ["default", "other"]

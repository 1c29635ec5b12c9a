"""`run_again`: copies of finished jobs, for one job and for the jobs of a query set."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.signals import job_deferred, jobs_operated

from ..app.rows import STATUSES, make_job, state

pytestmark = pytest.mark.django_db


def test_a_copy_is_enqueued_and_names_the_job_that_it_copies() -> None:
    job = make_job("failed", kwargs={"n": 1}, queue_name="mail", priority=7, timeout=3.5, metadata={"own": 1})
    state_before = state(job)
    copy = job.run_again(by="anna", reason="mended")
    assert copy is not None
    assert state(job) == state_before
    copied_columns = ("task", "args", "kwargs", "queue_name", "priority", "max_attempts", "timeout", "metadata")
    assert [state(copy)[name] for name in copied_columns] == [state_before[name] for name in copied_columns]
    assert (copy.status, copy.attempts) == ("queued", 0)
    [copy_record] = copy.operations or []
    assert (copy_record["verb"], copy_record["by"], copy_record["reason"], copy_record["job"]) == (
        "run_again",
        "anna",
        "mended",
        job.pk,
    )


def test_only_finished_jobs_are_copied() -> None:
    jobs = {status: make_job(status) for status in STATUSES}
    assert Job.objects.all().run_again() == 3
    ids_of_copied_jobs = {
        entry["job"] for job in Job.objects.filter(operations__isnull=False) for entry in job.operations or []
    }
    assert ids_of_copied_jobs == {jobs[status].pk for status in ("completed", "failed", "discarded")}
    assert jobs["running"].run_again() is None


def test_jobs_with_one_unique_key_get_at_most_one_copy() -> None:
    jobs_with_free_key = [make_job("failed", unique_key="free") for _ in range(2)]
    job_with_held_key = make_job("failed", unique_key="held")
    make_job("queued", unique_key="held")
    assert Job.objects.failed().run_again() == 1
    assert Job.objects.queued().filter(unique_key="free").count() == 1
    assert (job_with_held_key.run_again(), jobs_with_free_key[0].run_again()) == (None, None)


def test_a_limit_is_copied_with_its_key() -> None:
    jobs = [make_job("completed", limit_key=f"k{number}", capacity=number + 1) for number in range(2)]
    copies = [job.run_again() for job in jobs]
    assert [copy and (copy.limit_key, copy.capacity) for copy in copies] == [("k0", 1), ("k1", 2)]
    assert Job.objects.completed().run_again() == 2
    newest_limits = Job.objects.order_by("-pk").values_list("limit_key", "capacity")[:2]
    assert set(newest_limits) == {("k0", 1), ("k1", 2)}


def test_a_job_that_acts_for_a_user_is_not_copied() -> None:
    assert make_job("completed", task=BULK_TASK).run_again() is None
    assert Job.objects.count() == 1


def test_jobs_of_one_task_are_copied_in_one_statement() -> None:
    for number in range(50):
        make_job("completed", kwargs={"n": number})
    with CaptureQueriesContext(connection) as queries:
        assert Job.objects.completed().run_again() == 50
    assert len([query for query in queries if "INSERT" in query["sql"]]) == 1


def test_the_signals_name_the_copies() -> None:
    signals_seen: dict[str, list[int]] = {}

    def receive_deferred(sender: object, **event: Any) -> None:
        signals_seen["deferred"] = event["job_ids"]

    def receive_operated(sender: object, job_ids: list[int], **_: Any) -> None:
        signals_seen[str(sender)] = job_ids

    job = make_job("completed")
    job_deferred.connect(receive_deferred)
    jobs_operated.connect(receive_operated)
    try:
        copy = job.run_again()
    finally:
        job_deferred.disconnect(receive_deferred)
        jobs_operated.disconnect(receive_operated)
    assert copy is not None
    assert signals_seen == {"deferred": [copy.pk], "run_again": [copy.pk]}

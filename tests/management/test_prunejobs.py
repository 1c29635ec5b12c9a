"""`manage.py prunejobs`: deletes old finished jobs by hand, as a supervisor does."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_skipqueue.models import Job
from django_skipqueue.queue.parameters import BATCH_ROWS

from ..app.rows import make_job


def prunejobs(*arguments: str) -> str:
    """Run the command. Returns its output."""
    out = StringIO()
    call_command("prunejobs", *arguments, stdout=out)
    return out.getvalue()


pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def test_prunejobs_deletes_old_jobs_and_prints_their_number() -> None:
    for status, days in (("completed", 2), ("completed", 3), ("failed", 31), ("discarded", 1), ("completed", 0.5)):
        make_job(status, finished_at=timedelta(days=-days))
    make_job("queued")
    assert prunejobs() == "Deleted 3 jobs: 2 completed, 1 failed.\n"
    assert set(Job.objects.values_list("status", flat=True)) == {"discarded", "completed", "queued"}


def test_prunejobs_says_that_no_job_is_old_enough() -> None:
    assert prunejobs() == "Deleted 0 jobs: none were old enough.\n"


def test_prunejobs_deletes_batch_after_batch() -> None:
    columns_of_old_job = {"queue_name": "q", "task": "t", "finished_at": "2020-01-01T00:00Z"}
    Job.objects.bulk_create(Job(status="completed", **columns_of_old_job) for _ in range(2 * BATCH_ROWS))
    Job.objects.bulk_create(Job(status="failed", **columns_of_old_job) for _ in range(5))
    assert prunejobs() == f"Deleted {2 * BATCH_ROWS + 5:,} jobs: {2 * BATCH_ROWS:,} completed, 5 failed.\n"
    assert not Job.objects.exists()


@override_settings(SKIPQUEUE={"RETENTION": {"completed": None, "failed": 0}})
def test_prunejobs_obeys_the_setting_retention() -> None:
    make_job("completed", finished_at=timedelta(days=-900))
    make_job("failed")
    assert prunejobs() == "Deleted 1 jobs: 1 failed.\n" or prunejobs() == "Deleted 1 job: 1 failed.\n"
    assert Job.objects.completed().count() == 1


def test_prunejobs_takes_the_database() -> None:
    for using in ("default", "other"):
        make_job("completed", using=using, finished_at=timedelta(days=-2))
    prunejobs("--database", "other")
    assert (Job.objects.count(), Job.objects.using("other").count()) == (1, 0)


def test_prunejobs_refuses_an_unknown_database() -> None:
    with pytest.raises(CommandError, match="'nosuch'"):
        prunejobs("--database", "nosuch")

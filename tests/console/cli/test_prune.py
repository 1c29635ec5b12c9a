"""`skipqueue prune`: prunes as `prunejobs` does, and can print JSON."""

import json
from datetime import timedelta

import pytest

from django_skipqueue.console.cli.subcommand import Exit
from django_skipqueue.models import Job

from ...app.rows import make_job
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

OLDER_THAN_RETENTION = timedelta(days=-90)


def test_prune_deletes_old_jobs_and_prints_their_number() -> None:
    make_job("completed", finished_at=OLDER_THAN_RETENTION)
    make_job("failed")
    result = skipqueue("prune")
    assert (result.code, result.out, result.err) == (0, "Deleted 1 jobs: 1 completed.\n", "")
    assert Job.objects.get().status == "failed"


def test_prune_exits_with_0_if_no_job_is_old_enough() -> None:
    """Like `prunejobs`, the command exits with 0, so that cron reports no failure."""
    result = skipqueue("prune")
    assert (result.code, result.out) == (0, "Deleted 0 jobs: none were old enough.\n")


def test_prune_prints_the_numbers_of_deleted_jobs_as_json() -> None:
    for status in ("completed", "failed", "failed"):
        make_job(status, finished_at=OLDER_THAN_RETENTION)
    report = json.loads(skipqueue("prune", "--json").out)
    assert report == {"jobs": 3, "archived": False, "statuses": {"completed": 1, "failed": 2}}


def test_prune_takes_the_database() -> None:
    for using in ("default", "other"):
        make_job("completed", using=using, finished_at=OLDER_THAN_RETENTION)
    assert skipqueue("prune", "--database", "other").code == 0
    assert (Job.objects.count(), Job.objects.using("other").count()) == (1, 0)


def test_prune_refuses_an_unknown_database() -> None:
    result = skipqueue("prune", "--database", "nosuch")
    assert result.code == Exit.ERROR
    assert "nosuch" in result.err

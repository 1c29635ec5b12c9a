"""`skipqueue prune`: prunes as `prunejobs` does, and can print JSON."""

import json
from datetime import timedelta

import pytest

from django_skipqueue.models import Job

from ...app.rows import make_job
from ..skipqueue.running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

OLD = timedelta(days=-90)


def test_what_is_old_is_deleted_and_counted() -> None:
    make_job("completed", finished_at=OLD)
    make_job("failed")
    result = skipqueue("prune")
    assert (result.code, result.out, result.err) == (0, "Deleted 1 jobs: 1 completed.\n", "")
    assert Job.objects.get().status == "failed"


def test_with_nothing_to_do_it_says_so_and_is_done() -> None:
    """Like `prunejobs`, the command exits with 0, so that cron reports no failure."""
    result = skipqueue("prune")
    assert (result.code, result.out) == (0, "Deleted 0 jobs: none were old enough.\n")


def test_the_numbers_as_json() -> None:
    for status in ("completed", "failed", "failed"):
        make_job(status, finished_at=OLD)
    found = json.loads(skipqueue("prune", "--json").out)
    assert found == {"jobs": 3, "archived": False, "statuses": {"completed": 1, "failed": 2}}


def test_it_can_prune_another_database() -> None:
    for using in ("default", "other"):
        make_job("completed", using=using, finished_at=OLD)
    assert skipqueue("prune", "--database", "other").code == 0
    assert (Job.objects.count(), Job.objects.using("other").count()) == (1, 0)


def test_an_unknown_database_is_an_error() -> None:
    result = skipqueue("prune", "--database", "nosuch")
    assert result.code == 1
    assert "nosuch" in result.err

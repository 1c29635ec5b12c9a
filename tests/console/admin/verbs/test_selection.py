"""`Selection`, which yields the ids of the jobs that an action changes, in batches."""

import pytest

from django_skipqueue.console.admin.verbs import many_jobs
from django_skipqueue.console.admin.verbs.many_jobs import Selection
from django_skipqueue.models import Job

from ....app.rows import make_job

pytestmark = pytest.mark.django_db


def test_a_selection_has_ascending_ids_and_no_job_that_matched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_jobs, "BATCH_ROWS", 2)
    jobs = [make_job("failed").pk for _ in range(3)]
    batches = Selection(Job.objects.failed().order_by("-finished_at")).batches()
    assert next(batches) == jobs[:2]
    make_job("failed")
    assert list(batches) == [jobs[2:]]


def test_invalid_ids_are_left_out_of_a_selection() -> None:
    assert Selection.by_hand(["x", "-1", "9" * 30, "7", "²"]).ids == (7,)

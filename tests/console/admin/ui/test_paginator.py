"""`CappedPaginator`: no page of a list skips more jobs than the maximum that is counted."""

import pytest

from django_skipqueue.console import counts
from django_skipqueue.console.admin.jobs.changelist import CappedPaginator
from django_skipqueue.models import Job

from ....app.rows import make_job


@pytest.mark.django_db
def test_only_jobs_below_the_cap_can_be_paged_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
    for _ in range(5):
        make_job()
    paginator = CappedPaginator(Job.objects.order_by("-id"), 2)
    assert (paginator.count, paginator.num_pages) == (3, 2)
    assert len(paginator.page(2).object_list) == 1

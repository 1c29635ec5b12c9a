"""The admin pages of a queue that uses no optional part."""

import pytest
from django.test import Client

from ...app.rows import make_job, make_worker
from .conftest import LIST, QUEUES, WORKERS, page

pytestmark = [pytest.mark.core, pytest.mark.django_db]


@pytest.mark.parametrize("status", ["queued", "scheduled", "running", "completed", "failed", "discarded"])
def test_the_page_of_a_job_in_each_status(operator: Client, status: str) -> None:
    job = make_job(status, queue_name="mail")
    answer = operator.get(page("change", job.pk))
    assert answer.status_code == 200
    assert "tests.app.jobs.noop" in answer.text


@pytest.mark.parametrize(
    "address",
    ["/admin/", "/admin/django_skipqueue/", LIST, f"{LIST}?status=failed", f"{LIST}dashboard/", QUEUES, WORKERS],
)
def test_lists_and_dashboard_of_a_plain_queue(operator: Client, address: str) -> None:
    for status in ("queued", "running", "failed"):
        make_job(status, queue_name="mail")
    make_worker(queues=["mail"])
    assert operator.get(address).status_code == 200

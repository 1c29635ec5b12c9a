"""Rows of the project that refer to a job by a foreign key delay neither its claim nor its outcome."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED, Settlement

from ..app.rows import make_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def invoices() -> Iterator[None]:
    """A table whose foreign key is checked at each INSERT, and not at the commit."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE invoices (job_id bigint REFERENCES skipqueue_job)")
        yield
        cursor.execute("DROP TABLE invoices")


@pytest.mark.usefixtures("invoices")
def test_a_lock_by_a_foreign_key_does_not_delay_the_claim_or_the_outcome_of_a_job(
    connect: Callable[..., psycopg.Connection[Any]],
) -> None:
    job = make_job()
    with connect(autocommit=False) as other_connection:
        other_connection.execute("INSERT INTO invoices (job_id) VALUES (%s)", [job.pk])
        (claimed_job,) = Job.objects.claim(queue_names=["default"], worker_id="me")
        assert Store("default").settle([Settlement(claimed_job.pk, claimed_job.lease, COMPLETED)]) == {job.pk}
        other_connection.rollback()
    assert Job.objects.get(pk=job.pk).status == "completed"

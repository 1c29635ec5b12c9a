"""Secret arguments of Django's tasks are masked, by the names in the task's signature."""

import pytest
from django.test import Client

from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.redaction import MASK

from ...console.admin.conftest import LIST, log_in, operator, page  # noqa: F401 (fixtures)
from .app import tasks

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def test_secret_arguments_are_stored_but_neither_shown_nor_in_errors(operator: Client) -> None:  # noqa: F811
    tasks.log_in.enqueue("ada", "hunter22")
    run_jobs()
    job = Job.objects.get()
    assert job.args == ["ada", "hunter22"]
    assert job.last_error == f"ValueError: ada has no password {MASK}"
    assert "hunter22" not in str(job.errors)
    for address in (LIST, page("change", job.pk)):
        text = operator.get(address).text
        assert "ada has no password" in text
        assert "hunter22" not in text

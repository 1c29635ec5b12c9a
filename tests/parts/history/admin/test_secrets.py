"""The pages of failures, with a secret in the error of a job."""

import pytest
from django.test import Client

from django_skipqueue.console.search import cause_query
from django_skipqueue.models import Job
from django_skipqueue.values.records import Cause
from django_skipqueue.values.redaction import MASK

from ....console.admin.conftest import LIST, page
from ....console.admin.test_secrets import SECRET, TASK, _tasks, jobs, pytestmark
from ..failing import record_failures

__all__ = ["_tasks", "jobs", "pytestmark"]


def test_no_page_of_failures_shows_a_secret(operator: Client, jobs: dict[str, Job], subtests: pytest.Subtests) -> None:
    cause = Cause(TASK, "builtins.ValueError", "shop.log_in")
    record_failures(cause, job_id=jobs["failed"].pk)
    pages = {
        f"{LIST}failures/": TASK,
        f"{LIST}failures/cause/?{cause_query(cause)}": TASK,
        page("change", jobs["failed"].pk): MASK,
        f"{LIST}dashboard/": MASK,
    }
    for address, expected in pages.items():
        with subtests.test(address):
            html = operator.get(address).text
            assert expected in html
            assert SECRET not in html

"""The page of a task, and the links to it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue import job
from django_skipqueue.console.admin.ui.cells import task_link
from django_skipqueue.jobs.registry import Registry

from ....app.rows import make_job, make_worker
from ..conftest import LIST, page, task_page

TASK = "shop.jobs.send"


def send(iban: str) -> None:
    """A task."""


pytestmark = [pytest.mark.django_db, pytest.mark.core]


def test_the_page_of_a_task_lists_its_options(operator: Client, registry: Registry, settings: Any) -> None:
    settings.SKIPQUEUE = {"MAX_ATTEMPTS": 4}

    job(name=TASK, queue_name="mail", timeout=30, retry_on=(OSError, ValueError), redact=["iban"], atomic=True)(send)
    options = dict(operator.get(task_page(TASK)).context["page"].options)
    assert options == {
        "queue_name": "mail",
        "priority": "0",
        "max_attempts": "4",
        "timeout": "30",
        "retry_on": "OSError, ValueError",
        "atomic": "True",
        "redact": "iban",
    }


def test_the_page_of_a_task_links_to_its_jobs_by_state(operator: Client) -> None:
    text = operator.get(task_page(TASK)).text
    for state in ("scheduled", "retrying", "queued", "running", "completed", "failed", "discarded", "blocked"):
        assert f'href="{LIST}?status={state}&amp;task={TASK}"' in text


@pytest.mark.parametrize("name", ["gone.jobs.<b>", "", "x" * 2_000, "%00"])
def test_a_task_that_is_not_registered_has_a_page(operator: Client, name: str) -> None:
    response = operator.get(task_page(name))
    assert response.status_code == 200
    assert "This process does not know a task with this name." in response.text
    assert "<b>" not in response.text


def test_the_page_of_a_task_reads_no_job(operator: Client) -> None:
    make_job("failed", task=TASK)
    operator.get(task_page(TASK))  # fills the cache of the notices
    with CaptureQueriesContext(connection) as queries:
        operator.get(task_page(TASK))
    statements = [query["sql"] for query in queries]
    assert [statement for statement in statements if re.match(r'[^(]* FROM "?skipqueue_job\b', statement)] == []


@pytest.mark.parametrize(
    ("permission", "get_status", "post_status"), [("view_worker", 403, 405), ("view_job", 200, 405)]
)
def test_users_who_may_not_view_jobs_may_not_see_the_page_of_a_task(
    log_in: Callable[..., Client], permission: str, get_status: int, post_status: int
) -> None:
    client = log_in(permission)
    assert client.get(task_page(TASK)).status_code == get_status
    assert client.post(task_page(TASK)).status_code == post_status


class TestLinks:
    def test_the_page_of_a_job_links_to_its_task(self, operator: Client) -> None:
        link = f'<a href="{task_page(TASK)}"><span class="skipqueue-name">{TASK}</span></a>'
        assert link in operator.get(page("change", make_job(task=TASK).pk)).text

    def test_the_list_links_to_jobs_and_tasks(self, operator: Client) -> None:
        linked_job = make_job(task=TASK)
        make_job(task="alone")
        text = operator.get(LIST).text
        assert f'<a href="{page("change", linked_job.pk)}"><span class="skipqueue-name">send</span></a>' in text
        assert f'<a href="{task_page(TASK)}">shop.jobs</a>' in text
        assert "task=alone" not in text.partition("<tbody>")[2].partition("</table>")[0]

    def test_the_dashboard_links_to_jobs_and_tasks(self, operator: Client) -> None:
        running_job = make_job("running", task=TASK, locked_by=str(make_worker().pk))
        text = operator.get(f"{LIST}dashboard/").text
        assert task_link(TASK) in text
        assert f'<a href="{page("change", running_job.pk)}">#{running_job.pk}</a>' in text

    def test_a_task_name_that_is_too_long_for_an_address_is_no_link(self) -> None:
        assert "<a" not in task_link("x" * 201)
        assert "<a" not in task_link("x" * 201, "<b>")
        assert "&lt;b&gt;" in task_link("x" * 201, "<b>")

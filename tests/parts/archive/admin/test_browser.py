"""The archive in a real Chromium, under a policy that allows no inline script and no inline style."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ....app.rows import make_job
from ....console.admin.browser import Complaints, skip_by_default
from ....console.admin.pictures import DESKTOP, PHONE
from ....harness.partitions import drop_partitions

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ARCHIVE = "django_skipqueue/archivedjob/"


@pytest.fixture
def archived_ids(transactional_db: None, settings: Any) -> Iterator[list[int]]:
    """The ids of two archived jobs; the second is a year older."""
    settings.SKIPQUEUE = {"ARCHIVE": None}
    jobs = [make_job("failed", finished_at=timedelta(days=-days), task="tests.app.jobs.noop") for days in (40, 400)]
    Pruner(Store("default")).batch()
    yield [job.pk for job in jobs]
    drop_partitions()


@pytest.mark.parametrize("viewport", [PHONE, pytest.param(DESKTOP, marks=skip_by_default)], ids=["phone", "desk"])
def test_an_operator_finds_an_archived_job_by_its_time_and_runs_it_again(
    archived_ids: list[int], open_admin: Callable[..., Page], complaints: Complaints, viewport: dict[str, int]
) -> None:
    page = open_admin(User.objects.create_superuser("boss"), ARCHIVE, viewport=viewport)
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    filters = page.locator(".skipqueue-filters")
    if filters.get_attribute("open") is None:
        filters.locator("> summary").click()
    page.get_by_label("Before").fill("2000-01-01T00:00")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("No match.")).to_be_visible()
    page.go_back()
    page.locator("#result_list tbody tr a").first.click()
    expect(page.get_by_text("This job was moved from the job table to the archive")).to_be_visible()
    page.get_by_role("link", name="Run again as a new job").click()
    page.get_by_role("button", name="again, as a new job").click()
    expect(page.get_by_text(f"a copy of job {archived_ids[0]}")).to_be_visible()
    assert Job.objects.get().task == "tests.app.jobs.noop"
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert complaints == []

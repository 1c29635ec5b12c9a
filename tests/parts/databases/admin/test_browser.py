"""Several databases in a browser: a user switches to one, and all actions stay in it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_skipqueue.models import Job

from ....app.rows import make_job
from ....console.admin.browser import Complaints

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases=["default", "other"])]

SHOWS_OTHER = re.compile(r"[?&]database=other\b")


def test_a_user_switches_to_another_database_and_retries_a_job_there(
    open_admin: Callable[..., Page], complaints: Complaints, settings: Any
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    for alias in ("default", "other"):
        make_job("failed", using=alias, pk=4711)
    page = open_admin(User.objects.create_superuser("ann"), "django_skipqueue/job/?status=failed")
    page.locator(".skipqueue-databases").get_by_role("link", name="other").press("Enter")
    expect(page.locator(".skipqueue-databases [aria-current]")).to_have_text("other")
    page.locator("#result_list").get_by_role("link").first.click()
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".messagelist")).to_be_visible()
    expect(page).to_have_url(SHOWS_OTHER)
    expect(page.locator(".skipqueue-facts")).to_contain_text("other:4711")
    statuses = [Job.objects.using(alias).get(pk=4711).status for alias in ("default", "other")]
    assert statuses == ["failed", "queued"]
    assert complaints == []

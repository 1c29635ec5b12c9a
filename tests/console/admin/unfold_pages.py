"""The admin's pages with django-unfold, in a browser. `test_unfold` runs these tests with other settings."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings
from playwright.sync_api import Page, expect

from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.services import Pruner

from ...app.rows import make_job
from ...harness.partitions import drop_partitions
from . import browser, scene
from .browser import Complaints, skip_by_default
from .conftest import LIST, QUEUES, WORKERS
from .conftest import page as address_of
from .pictures import DESKTOP
from .test_browser import CONTRASTS

pytestmark = pytest.mark.django_db(transaction=True)

POLICY_FOR_UNFOLD = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'"
)
ARCHIVE = "/admin/django_skipqueue/archivedjob/"
BULK_ARGUMENTS = {"action": "retry_selected", "query": "", "site": "admin", "user_id": 0, "user": "x", "number": 3}


@pytest.fixture(autouse=True)
def _policy_of_unfold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "SECURITY_POLICY", POLICY_FOR_UNFOLD)


def make_archived_job() -> int:
    """Make a job that is pruned into the archive, and return its id."""
    job = make_job("failed", finished_at=timedelta(days=-40), task="shop.jobs.send", last_error="ValueError: no")
    with override_settings(SKIPQUEUE={"ARCHIVE": None}):
        Pruner(Store("default")).batch()
    return job.pk


@pytest.fixture(autouse=True)
def _no_partitions_left() -> Iterator[None]:
    yield
    drop_partitions()


@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=skip_by_default)])
def test_every_page_has_readable_badges_with_unfold(
    open_admin: Callable[..., Page], picture: Callable[[Page, str], None], complaints: Complaints, colours: Any
) -> None:
    workers = scene.make_workers()
    scene.make_jobs(workers)
    failed_job, running_job = scene.make_failed_job(workers[0]), scene.make_running_job(workers[0])
    bulk_job = make_job("running", task=BULK_TASK, kwargs=BULK_ARGUMENTS, locked_by=workers[0].pk)
    archived_id = make_archived_job()
    page = open_admin(User.objects.create_superuser("boss"), viewport=DESKTOP, color_scheme=colours)
    site_address = page.url.removesuffix("/admin/")
    for name, address in {
        "index": "/admin/",
        "jobs": LIST,
        "dashboard": f"{LIST}dashboard/",
        "queues": QUEUES,
        "workers": WORKERS,
        "archive": ARCHIVE,
        "archived": f"{ARCHIVE}{archived_id}/change/",
        "failed": address_of("change", failed_job.pk),
        "running": address_of("change", running_job.pk),
        "progress": address_of("progress", bulk_job.pk),
        "history": address_of("history", failed_job.pk),
        "question": address_of("run_again", failed_job.pk),
        "form": address_of("delete", failed_job.pk),
    }.items():
        response = page.goto(site_address + address)
        assert response is not None
        assert response.status == 200, address
        page.wait_for_load_state("networkidle")
        picture(page, f"unfold-{name}-{colours}")
        texts = page.locator(".skipqueue-badge, .skipqueue-outcome").evaluate_all(CONTRASTS)
        assert all(contrast >= 4.5 for _, contrast in texts), (name, texts)
        if name not in ("index", "jobs", "queues", "workers", "archive"):
            assert page.locator("#content-main").is_visible()
    assert [complaint for complaint in complaints if "django_skipqueue" in complaint.rpartition("(")[2]] == []


def test_an_action_of_the_list_works_with_unfold(open_admin: Callable[..., Page]) -> None:
    job = make_job("failed", task="shop.jobs.send")
    page = open_admin(User.objects.create_superuser("boss"), viewport=DESKTOP)
    page.goto(page.url.removesuffix("/admin/") + f"{LIST}?status=failed")
    page.locator("input.action-select").check()
    page.locator("select[name=action]").select_option("retry_selected")
    page.locator("button[name=index]").first.click()
    page.get_by_role("button", name="Retry 1 job").click()
    job.refresh_from_db()
    assert job.status == "queued"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=skip_by_default)])
def test_the_database_menu_works_with_unfold(
    open_admin: Callable[..., Page],
    picture: Callable[[Page, str], None],
    complaints: Complaints,
    settings: Any,
    colours: Any,
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    job = make_job("failed", using="other", pk=4711)
    page = open_admin(User.objects.create_superuser("boss"), viewport=DESKTOP, color_scheme=colours)
    site_address = page.url.removesuffix("/admin/")
    for name, address in {"jobs": LIST, "dashboard": f"{LIST}dashboard/", "workers": WORKERS}.items():
        page.goto(site_address + address)
        switch = page.locator(".skipqueue-databases")
        expect(switch).to_be_visible()
        expect(switch.locator("[aria-current]")).to_have_text("default")
        switch.get_by_role("link", name="other (retiring)").click()
        expect(page).to_have_url(re.compile(r"[?&]database=other\b"))
        expect(switch.locator("[aria-current]")).to_have_text("other (retiring)")
        assert switch.evaluate(FIND_OVERLAPPING) == [], name
        picture(page, f"unfold-database-{name}-{colours}")
    page.goto(f"{site_address}{address_of('change', job.pk)}?database=other")
    expect(page.locator(".skipqueue-databases")).to_be_visible()
    expect(page.locator("#content-main")).to_contain_text("other:4711")
    assert [complaint for complaint in complaints if "django_skipqueue" in complaint.rpartition("(")[2]] == []


FIND_OVERLAPPING = """element => [...element.parentElement.children]
    .filter(other => other !== element)
    .filter(other => other.getBoundingClientRect().top < element.getBoundingClientRect().bottom)
    .filter(other => other.getBoundingClientRect().bottom > element.getBoundingClientRect().top)
    .map(other => other.outerHTML.slice(0, 80))"""
"""JavaScript that returns the beginnings of the elements that overlap the database menu."""

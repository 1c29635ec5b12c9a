"""The page of the doctor: findings with advice, the worst first."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Page, expect

from django_skipqueue.console.rules.rule import Finding, PageLink, Rule, Severity
from django_skipqueue.models import Worker

from ....app.rows import make_job, make_worker
from ....harness.languages import Text, use_translations
from ..browser import Complaints, skip_by_default
from ..conftest import LIST, WORKERS

DOCTOR = f"{LIST}doctor/"
PATH = DOCTOR.removeprefix("/admin/")
PHONE = {"width": 390, "height": 844}

pytestmark = pytest.mark.django_db(transaction=True)


def make_trouble() -> None:
    """Make a dead worker with a running job, and a finished job whose retention is over."""
    make_worker(name="web-3/1", heartbeat=timedelta(minutes=-12))
    make_job("running", task="reports.jobs.export", locked_by="web-3/1:abcdef123456", locked_at=timedelta(minutes=-12))
    make_job("completed", finished_at=timedelta(days=-3))


def test_findings_are_shown_with_commands_the_worst_first(operator: Client) -> None:
    make_trouble()
    text = operator.get(DOCTOR).text
    critical, warning = text.index("Running jobs whose worker is gone"), text.index("1 worker has been dead since ")
    assert critical < warning
    for expected in ('data-status="critical"', "orphaned-job", '<pre tabindex="0">python manage.py prunejobs</pre>'):
        assert expected in text
    assert "Checked in" in text
    assert re.search(r'data-status="critical" role="status"><p><strong>\d+ problems</strong>', text)


@pytest.mark.usefixtures("new_tables")
def test_a_healthy_queue_has_a_list_of_the_checks_that_found_nothing(operator: Client) -> None:
    make_worker()
    text = operator.get(DOCTOR).text
    assert "All is well." in text
    assert "checks found no problem" in text
    assert "No job has held a unique key for days" in text


def test_the_title_of_a_finding_links_to_the_list_that_it_names(operator: Client) -> None:
    make_trouble()
    text = operator.get(DOCTOR).text
    (worker,) = Worker.objects.all()
    assert f'<a href="{WORKERS}{quote(worker.pk)}/change/">1 worker has been dead since ' in text
    assert f'<a href="{LIST}?status=running">Running jobs whose worker is gone</a>' in text
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_job"))
    User.objects.update(is_superuser=False)
    text = operator.get(DOCTOR).text
    assert f'<a href="{LIST}?status=running">' in text
    assert WORKERS not in text


def test_a_finding_that_links_to_the_doctor_is_shown_there_without_the_link(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = PageLink("job_doctor", query={"database": "other"})
    rule = Rule("old-session", lambda store: [Finding.of(Severity.WARNING, "An old session", link=link)], "fine")
    monkeypatch.setattr("django_skipqueue.console.rules.examination.rules_of", lambda _: [rule])
    text = " ".join(operator.get(DOCTOR).text.split())
    assert re.search(r"<h2 [^>]*>[^<]*<span[^>]*>[^<]*</span> An old session <span", text)


def test_the_page_of_the_doctor_is_translated(operator: Client, settings: Any, tmp_path: Path) -> None:
    translations: dict[Text, Text] = {
        "Doctor": "Kuracisto",
        "Running jobs whose worker is gone": "Taskoj sen laboristo",
        "critical": "kritika",
        "Checked in %(duration)s at %(time)s.": "Kontrolita en %(duration)s je %(time)s.",
    }
    use_translations(settings, tmp_path, translations)
    make_trouble()
    text = operator.get(DOCTOR).text
    for expected in ("<h1>Kuracisto</h1>", "Taskoj sen laboristo", "kritika", "Kontrolita en"):
        assert expected in text
    assert "Running jobs" not in text


def test_users_who_may_view_jobs_have_links_to_the_doctor(log_in: Callable[..., Client]) -> None:
    make_job()
    viewer = log_in("view_job", "view_worker")
    link = f'href="{reverse("admin:django_skipqueue_job_doctor")}"'
    for address in (LIST, WORKERS, "/admin/"):
        assert link in viewer.get(address).text, address


def test_users_who_may_not_view_jobs_have_no_access_to_the_doctor(log_in: Callable[..., Client]) -> None:
    make_job()
    somebody = log_in("view_worker")
    assert "doctor/" not in somebody.get(WORKERS).text
    assert somebody.get(DOCTOR).status_code == 403


def test_the_page_of_the_doctor_refuses_a_post(operator: Client) -> None:
    assert operator.post(DOCTOR).status_code == 405


def test_a_database_that_cannot_be_used_is_a_finding(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASE": "nosuch"}
    text = operator.get(DOCTOR).text
    assert "database-unusable" in text
    assert "&#x27;nosuch&#x27;" in text


def test_the_page_of_the_doctor_escapes_html_in_names(operator: Client) -> None:
    make_worker(name="<script>alert(1)</script>", heartbeat=timedelta(hours=-1))
    make_job("scheduled", unique_key="<script>alert(1)</script>", enqueued_at=timedelta(days=-9))
    assert "<script>alert" not in operator.get(DOCTOR).text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=skip_by_default)])
def test_the_page_of_the_doctor_fits_a_phone(
    open_admin: Callable[..., Page], complaints: Complaints, scheme: str
) -> None:
    make_trouble()
    page = open_admin(User.objects.create_superuser("ann"), PATH, viewport=PHONE, color_scheme=scheme)
    expect(page.locator("h1")).to_have_text("Doctor")
    expect(page.locator(".skipqueue-card").first).to_contain_text("critical")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.locator(".skipqueue-card pre").first.click()
    assert page.evaluate("getSelection().toString()").strip() == "python manage.py runworker"
    page.locator(".skipqueue-well summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Every index is valid")).to_be_visible()
    page.get_by_role("link", name="Check again").click()
    expect(page.locator("h1")).to_have_text("Doctor")
    assert complaints == []

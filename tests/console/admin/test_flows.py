"""What operators do on the page of a job, in a real Chromium under a strict content security policy."""

import signal
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_skipqueue.console.admin.jobs import job_admin
from django_skipqueue.models import Job

from ...app.jobs import add
from ...app.rows import make_job, state
from ...app.waiting import wait_until
from ...harness.processes import workers
from .browser import Complaints
from .conftest import page as address_of
from .pictures import DESKTOP

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SETTINGS_WITH_ADMIN = """
INSTALLED_APPS += ["django.contrib.admin", "django.contrib.messages", "django.contrib.sessions"]
"""

Open = Callable[..., Page]


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


def job_address(name: str, job: Job) -> str:
    return address_of(name, job.pk).removeprefix("/admin/")


def test_an_operator_reschedules_a_job_and_changes_its_queue(
    boss: User, open_admin: Open, complaints: Complaints
) -> None:
    job = make_job("scheduled")
    page = open_admin(boss, job_address("change", job), viewport=DESKTOP)
    page.get_by_role("link", name="Reschedule…").click()
    page.get_by_label("Due at:").fill("2100-01-01T12:30:15")
    page.get_by_role("button", name=f"Reschedule job {job.pk}").click()
    expect(page.get_by_text(f"Job {job.pk} is due at 2100-01-01 12:30:15 UTC.")).to_be_visible()
    page.get_by_role("link", name="Change queue…").click()
    page.get_by_label("Queue:").fill("mail")
    page.get_by_role("button", name=f"Change the queue of job {job.pk}").click()
    expect(page.get_by_text("default → mail")).to_be_visible()
    assert complaints == []


def test_an_operator_runs_a_job_again_with_other_arguments(
    boss: User, open_admin: Open, complaints: Complaints
) -> None:
    job = make_job("failed", task=add.name, args=[1], kwargs={"b": {"token": "s3cret-value", "n": 1}})
    page = open_admin(boss, job_address("change", job), viewport=DESKTOP)
    expect(page.get_by_text('add.defer(1, b={"n": 1, "token": ...})')).to_be_visible()
    page.get_by_role("link", name="Run again with other arguments…").click()
    assert "s3cret" not in page.content()
    page.get_by_label("a:").fill("x")
    page.get_by_role("button", name=f"Run job {job.pk} again with other arguments").click()
    expect(page.get_by_text("This is not JSON")).to_be_visible()
    page.get_by_label("a:").fill("2")
    page.get_by_role("button", name=f"Run job {job.pk} again with other arguments").click()
    expect(page.get_by_text("with other arguments.").first).to_be_visible()
    assert Job.objects.latest("pk").kwargs["b"] == {"token": "s3cret-value", "n": 1}
    assert Job.objects.latest("pk").args == [2]
    assert complaints == []


def test_an_operator_copies_the_code_that_defers_a_job(boss: User, open_admin: Open, complaints: Complaints) -> None:
    job = make_job("completed", task=add.name, args=[1, 2])
    page = open_admin(
        boss, job_address("change", job), viewport=DESKTOP, permissions=["clipboard-read", "clipboard-write"]
    )
    code, button = (page.locator(name).bounding_box() for name in ("#skipqueue-code", "#skipqueue-defer-call button"))
    assert code
    assert button
    assert button["y"] > code["y"], "the button is in the corner of the code, not of the page"
    page.locator("#skipqueue-defer-call button").click()
    expect(page.locator("#skipqueue-defer-call button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "from tests.app.jobs import add\n\nadd.defer(1, 2)"
    assert complaints == []


def test_a_worker_retries_many_jobs_and_the_page_shows_the_progress(
    boss: User,
    open_admin: Open,
    complaints: Complaints,
    runworker: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
    jobs = [make_job("failed", task="gone.jobs.task", queue_name="nobody") for _ in range(5)]
    process = runworker("--queues", "default", settings=SETTINGS_WITH_ADMIN)
    wait_until(lambda: workers(1))
    page = open_admin(boss, "django_skipqueue/job/?status=failed", viewport=DESKTOP)
    page.locator("input.action-select").first.check()
    page.evaluate("document.querySelector('input[name=select_across]').value = '1'")
    page.locator("select[name=action]").select_option("retry_selected")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("A worker will change these jobs, because there are many.")).to_be_visible()
    page.get_by_role("button", name="Retry 5 jobs").click()
    expect(page.get_by_role("heading", name="Retry 5 jobs")).to_be_visible()
    expect(page.get_by_text("5 jobs were put back into their queues.")).to_be_visible(timeout=20_000)
    assert {state(job)["status"] for job in jobs} == {"queued"}
    assert complaints == []
    process.send(signal.SIGTERM)  # type: ignore[attr-defined]

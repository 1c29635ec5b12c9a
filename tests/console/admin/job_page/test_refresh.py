"""The script of the job page, in a real Chromium: it refreshes the page until the job is finished."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from django_skipqueue.models import Job

from ....app.rows import make_job, make_worker
from .. import scene
from ..browser import Complaints

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

TIMEOUT_MILLISECONDS = 20_000
FAKE_HIDDEN = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => window.isHidden ?? false})"
SELECT_THE_HEADING = "document.getSelection().selectAllChildren(document.querySelector('#skipqueue-job h1'))"


@pytest.fixture
def boss(transactional_db: None) -> User:
    """Make a superuser."""
    return User.objects.create_superuser("boss")


@pytest.fixture
def open_job(boss: User, open_admin: Callable[..., Page]) -> Callable[..., Page]:
    """Return a function that opens the page of a job."""

    def open_page(job: Job, **options: Any) -> Page:
        return open_admin(boss, f"django_skipqueue/job/{job.pk}/change/", **options)

    return open_page


def complete(job: Job) -> None:
    """Set the row as a worker does when the attempt completes."""
    Job.objects.filter(pk=job.pk).update(status="completed", finished_at=Now(), result=7)


def wait_for_status(page: Page, status: str) -> None:
    """Wait until the page shows this status."""
    expect(page.locator("h1 .skipqueue-badge")).to_have_text(status, timeout=TIMEOUT_MILLISECONDS)


def record_fetches(page: Page) -> list[str]:
    """Return a list to which every address is added that the page's script fetches from now on."""
    fetched_addresses: list[str] = []
    page.on("request", lambda request: fetched_addresses.append(request.url) if "fragment" in request.url else None)
    return fetched_addresses


def wait_for_fetches(page: Page, fetched_addresses: list[str], count: int) -> None:
    """Wait until the page has sent this number of requests."""
    while len(fetched_addresses) < count:
        page.wait_for_event("request", timeout=TIMEOUT_MILLISECONDS)


def test_the_page_is_refreshed_until_the_job_is_finished(open_job: Callable[..., Page], complaints: Complaints) -> None:
    make_worker()
    job = make_job("running")
    page = open_job(job)
    live = page.locator("#skipqueue-live")
    expect(live).to_contain_text("Refreshes automatically")
    fetched_addresses = record_fetches(page)
    wait_for_fetches(page, fetched_addresses, 2)
    complete(job)
    wait_for_status(page, "completed")
    expect(page.locator("section", has_text="Result").locator("pre").first).to_have_text("7")
    expect(page.locator("#skipqueue-live-text")).to_have_text(f"Job {job.pk} is completed.")
    expect(live).to_be_hidden()
    number_of_fetches = len(fetched_addresses)
    with pytest.raises(Exception, match="Timeout"):
        page.wait_for_event("request", timeout=3_000)
    assert len(fetched_addresses) == number_of_fetches
    assert complaints == []


def test_a_finished_job_is_not_fetched_again(open_job: Callable[..., Page]) -> None:
    page = open_job(make_job("completed"))
    expect(page.locator("#skipqueue-live")).to_have_count(0)
    with pytest.raises(Exception, match="Timeout"):
        page.wait_for_event("request", lambda request: "fragment" in request.url, timeout=3_000)


def test_the_page_is_not_refreshed_while_text_is_selected(open_job: Callable[..., Page]) -> None:
    job = make_job("running")
    page = open_job(job)
    page.evaluate(SELECT_THE_HEADING)
    expect(page.locator("#skipqueue-live")).to_contain_text("Paused", timeout=TIMEOUT_MILLISECONDS)
    complete(job)
    fetched_addresses = record_fetches(page)
    expect(page.locator("h1 .skipqueue-badge")).to_have_text("running")
    page.evaluate("document.getSelection().removeAllRanges()")
    wait_for_status(page, "completed")
    assert len(fetched_addresses) == 1


def test_the_page_is_not_refreshed_while_its_window_is_hidden(open_job: Callable[..., Page]) -> None:
    job = make_job("running")
    page = open_job(job)
    page.evaluate(FAKE_HIDDEN)
    page.evaluate("window.isHidden = true")
    complete(job)
    with pytest.raises(Exception, match="Timeout"):
        page.wait_for_event("request", lambda request: "fragment" in request.url, timeout=3_000)
    page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    wait_for_status(page, "completed")


def test_the_page_says_that_it_is_no_longer_refreshed_if_the_server_does_not_answer(
    open_job: Callable[..., Page],
) -> None:
    page = open_job(make_job("running"))
    page.route("**/*fragment*", lambda route: route.abort())
    live = page.locator("#skipqueue-live")
    expect(live).to_contain_text("No longer refreshed", timeout=TIMEOUT_MILLISECONDS)
    page.unroute("**/*fragment*")
    live.get_by_role("link", name="Refresh").click()
    expect(live).to_contain_text("Refreshes automatically")


def test_the_page_is_no_longer_refreshed_once_its_job_is_deleted(open_job: Callable[..., Page]) -> None:
    job = make_job("running")
    page = open_job(job)
    Job.objects.filter(pk=job.pk).delete()
    expect(page.locator("#skipqueue-live")).to_contain_text("No longer refreshed", timeout=TIMEOUT_MILLISECONDS)
    page.goto(page.url.partition("job/")[0])
    expect(page.locator(".messagelist")).to_have_count(0)


def test_a_refresh_keeps_open_details_and_the_focus(open_job: Callable[..., Page]) -> None:
    worker = make_worker()
    errors = [scene.make_error(worker, number, seconds_ago=100 - number) for number in (1, 2)]
    page = open_job(make_job("running", attempts=3, errors=errors, locked_by=worker.pk))
    first = page.locator("#attempt-1")
    first.locator("> summary").click()
    first.locator(".skipqueue-traceback summary").first.press("Enter")
    fetched_addresses = record_fetches(page)
    wait_for_fetches(page, fetched_addresses, 3)
    expect(first).to_have_attribute("open", "")
    expect(first.locator(".skipqueue-traceback details").first).to_have_attribute("open", "")
    expect(first.locator(".skipqueue-traceback summary").first).to_be_focused()
    expect(page.locator("#attempt-2")).not_to_have_attribute("open", "")


def test_without_javascript_a_link_refreshes_the_page(open_job: Callable[..., Page]) -> None:
    job = make_job("running", errors=[scene.make_error(make_worker(), 1, seconds_ago=9)], attempts=2)
    page = open_job(job, java_script_enabled=False)
    complete(job)
    expect(page.locator(".skipqueue-copy").first).to_be_hidden()
    page.locator("#skipqueue-live").get_by_role("link", name="Refresh").click()
    wait_for_status(page, "completed")


def test_a_traceback_is_copied_with_its_folded_lines(open_job: Callable[..., Page], complaints: Complaints) -> None:
    page = open_job(scene.make_failed_job(make_worker()), permissions=["clipboard-read", "clipboard-write"])
    page.locator("#attempt-6 .skipqueue-copy").click()
    expect(page.locator("#attempt-6 .skipqueue-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == scene.REFUSED_TRACEBACK.rstrip()
    assert complaints == []


@pytest.mark.parametrize("lines", [1, 45])
def test_the_line_that_raised_is_visible_without_scrolling(open_job: Callable[..., Page], lines: int) -> None:
    message = "\n".join(["psp.example.com cannot be reached", *(f"hint {number}" for number in range(1, lines))])
    traceback = scene.REFUSED_TRACEBACK.replace("psp.example.com cannot be reached\n", f"{message}\n")
    traceback = traceback.replace("[Errno 111] Connection refused", f"[Errno 111] {message}")
    worker = make_worker()
    error = scene.make_error(worker, 6, seconds_ago=1, message=message, traceback=traceback)
    page = open_job(scene.make_failed_job(worker, errors=[error]), viewport=scene.LAPTOP)
    for line in ("receipt = gateway.capture(payment.reference, payment.total)", "raise GatewayUnavailable"):
        expect(page.get_by_text(line)).to_be_in_viewport()
    assert page.get_by_text(f"hint {lines - 1}").count() == (0 if lines == 1 else 2)

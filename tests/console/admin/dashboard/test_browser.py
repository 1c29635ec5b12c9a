"""The dashboard in a browser: it refreshes itself, but not while somebody reads, selects or types."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from playwright.sync_api import Locator, Page, expect

from ....app.rows import make_job, make_worker
from ..browser import Complaints

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DASHBOARD = "django_skipqueue/job/dashboard/"
FAST_REFRESH = "localStorage.setItem('django_skipqueue.refresh', '2')"


@pytest.fixture
def boss(transactional_db: None) -> User:
    """Make a superuser."""
    return User.objects.create_superuser("boss")


@pytest.fixture
def dashboard(boss: User, open_admin: Callable[..., Page]) -> Page:
    """Open the dashboard, which then refreshes itself every two seconds."""
    make_worker(name="w")
    page = open_admin(boss, DASHBOARD)
    page.evaluate(FAST_REFRESH)
    page.reload()
    return page


def card_value(page: Page, label: str) -> Locator:
    """Return the element with the value on the card with this label."""
    return page.locator(".skipqueue-number", has_text=label).locator("strong")


def test_the_dashboard_refreshes_its_numbers(dashboard: Page, complaints: Complaints) -> None:
    expect(dashboard.locator(".skipqueue-refresh select")).to_have_value("2")
    expect(card_value(dashboard, "Running")).to_have_text("0")
    job = make_job("running", locked_at=timedelta(minutes=-12))
    expect(card_value(dashboard, "Running")).to_have_text("1")
    expect(dashboard.get_by_role("link", name=f"#{job.pk}")).to_be_visible()
    expect(dashboard.locator("[data-age]")).to_have_text("updated 1 s ago")
    assert complaints == []


def test_a_refresh_keeps_the_focus_and_open_tables(dashboard: Page) -> None:
    dashboard.locator("#skipqueue-data-throughput summary").click()
    dashboard.locator(".skipqueue-number", has_text="Running").focus()
    make_job("running")
    expect(card_value(dashboard, "Running")).to_have_text("1")
    expect(dashboard.locator("#skipqueue-data-throughput table")).to_be_visible()
    expect(dashboard.locator(".skipqueue-number", has_text="Running")).to_be_focused()


def test_the_dashboard_is_not_refreshed_while_a_table_is_read(dashboard: Page) -> None:
    dashboard.locator("#skipqueue-data-throughput summary").click()
    expect(dashboard.locator("[data-age]")).to_have_text("paused while you select, read or type")
    make_job("running")
    dashboard.wait_for_timeout(2_500)  # longer than the interval of two seconds
    expect(card_value(dashboard, "Running")).to_have_text("0")
    dashboard.locator("h1").click()
    expect(card_value(dashboard, "Running")).to_have_text("1")


def test_the_list_of_jobs_is_not_refreshed_while_jobs_are_selected(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    make_job("failed")
    make_job("failed")
    page = open_admin(boss, "django_skipqueue/job/?status=failed")
    page.evaluate(FAST_REFRESH)
    page.reload()
    page.locator("#action-toggle").check()
    page.locator("h1").click(position={"x": 4, "y": 4})
    expect(page.locator("[data-age]")).to_have_text("paused while you select, read or type")
    page.locator("#action-toggle").uncheck()
    page.locator("h1").click(position={"x": 4, "y": 4})
    make_job("failed", task="shop.jobs.new")
    expect(page.locator("#result_list tbody tr")).to_have_count(3)
    page.locator("#action-toggle").check()
    expect(page.locator(".action-counter")).to_have_text("3 of 3 selected")
    assert complaints == []


def test_the_dashboard_is_not_refreshed_if_the_interval_is_never(dashboard: Page) -> None:
    dashboard.locator(".skipqueue-refresh select").select_option("0")
    make_job("running")
    dashboard.wait_for_timeout(2_500)
    expect(card_value(dashboard, "Running")).to_have_text("0")
    dashboard.locator(".skipqueue-refresh a").click()
    expect(card_value(dashboard, "Running")).to_have_text("1")
    dashboard.reload()
    expect(dashboard.locator(".skipqueue-refresh select")).to_have_value("0")


def test_the_dashboard_says_when_the_user_was_logged_out(dashboard: Page) -> None:
    Session.objects.all().delete()
    expect(dashboard.locator("[data-age]")).to_contain_text("You have been logged out")
    expect(dashboard.locator("h1")).to_have_text("Dashboard")


def test_the_dashboard_says_that_the_server_does_not_answer_and_tries_again(dashboard: Page) -> None:
    dashboard.route("**/dashboard/", lambda route: route.abort())
    expect(dashboard.locator("[data-age]")).to_contain_text("the server does not answer")
    dashboard.unroute("**/dashboard/")
    expect(dashboard.locator("[data-age]")).to_contain_text("updated")


def test_the_dashboard_shows_a_selected_queue(dashboard: Page, complaints: Complaints) -> None:
    make_job(queue_name="mail")
    dashboard.reload()
    dashboard.get_by_label("Queue", exact=True).select_option("mail")
    dashboard.wait_for_url("**queue=mail*")
    expect(card_value(dashboard, "Queued")).to_have_text("1")
    dashboard.get_by_role("link", name="24 hours").click()
    dashboard.wait_for_url("**range=24h&queue=mail*")
    assert complaints == []


def test_without_javascript_a_link_refreshes_the_dashboard(boss: User, open_admin: Callable[..., Page]) -> None:
    page = open_admin(boss, DASHBOARD, java_script_enabled=False)
    expect(page.locator(".skipqueue-refresh select")).to_be_hidden()
    expect(page.get_by_role("button", name="Show")).to_be_visible()
    make_job("running")
    page.get_by_role("link", name="Refresh").click()
    expect(card_value(page, "Running")).to_have_text("1")

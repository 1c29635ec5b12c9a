"""The admin in a real Chromium, under a policy that allows no inline script and no inline style."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import F
from playwright.sync_api import Page, expect

from django_skipqueue import job as register
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job, Worker

from ...app.jobs import add
from ...app.rows import STATUSES, make_job, make_worker
from ...app.waiting import wait_until
from ...harness.languages import Text, use_translations
from ...harness.processes import workers
from . import scene
from .browser import Complaints, skip_by_default
from .pictures import DESKTOP

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

JOBS = "django_skipqueue/job/"
WORKERS = "django_skipqueue/worker/"
QUEUES = "django_skipqueue/queue/"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"

# The formula for the contrast comes from the Web Content Accessibility Guidelines (WCAG 2).
CONTRASTS = """elements => elements.filter(element => element.isConnected).map(element => {
    const channels = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const luminance = colour => {
        const [r, g, b] = channels(colour).map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const style = getComputedStyle(element);
    const [low, high] = [luminance(style.color), luminance(style.backgroundColor)].sort((a, b) => a - b);
    return [element.textContent.trim(), (high + 0.05) / (low + 0.05)];
})"""
"""JavaScript that returns the text and the contrast of each element, except elements that the page has replaced."""


@pytest.fixture
def boss(transactional_db: None) -> User:
    """Make a superuser."""
    return User.objects.create_superuser("boss")


@pytest.fixture
def viewer(transactional_db: None) -> User:
    """Make a user who may only view jobs and workers."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", "view_worker"]))
    return user


def make_everything() -> dict[str, Job]:
    """Make a job in each status, and a worker. Return the jobs by status."""
    worker = make_worker(name="web/1", queues=["default"])
    make_job(queue_name="nobody serves it")
    make_job("scheduled", attempts=1)
    errors = [{"attempt": 1, "exception": "x.Y", "message": HOSTILE, "traceback": HOSTILE}]
    return {
        status: make_job(
            status, kwargs={"a": HOSTILE}, last_error=HOSTILE, errors=errors, locked_by=str(worker.pk), task=HOSTILE
        )
        for status in STATUSES
    }


def test_a_failed_job_is_retried_with_a_click_and_completes(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints, runworker: Callable[..., Any]
) -> None:
    job = make_job("failed", task=add.name, kwargs={"a": 1, "b": 2}, last_error="ValueError: busy")
    page = open_admin(boss, f"{JOBS}?status=failed")
    page.locator("#result_list").get_by_role("link").first.click()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".messagelist")).to_have_text(f"Job {job.pk} is back in the queue “default”.")
    expect(page.locator("h1 .skipqueue-badge")).to_have_text("queued")
    assert runworker("--drain").wait() == 0
    page.reload()
    expect(page.locator("h1 .skipqueue-badge")).to_have_text("completed")
    expect(page.locator("section", has_text="Result").locator("pre")).to_have_text("3")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    assert complaints == []


def test_all_matching_jobs_are_retried_after_a_question(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    for _ in range(60):
        make_job("failed")
    make_job("completed")
    page = open_admin(boss, f"{JOBS}?status=failed")
    page.locator("#action-toggle").check()
    page.get_by_text("Select all 60 jobs").click()
    expect(page.get_by_text("All 60 selected")).to_be_visible()
    page.locator("select[name=action]").select_option("retry_selected")
    page.locator("button[name=index]").click()
    expect(page.locator("h1")).to_have_text("Retry 60 jobs?")
    page.get_by_role("button", name="Retry 60 jobs").click()
    expect(page.locator(".messagelist")).to_have_text("60 jobs were put back into their queues.")
    assert Job.objects.queued().count() == 60
    assert complaints == []


def test_a_job_can_be_discarded_with_the_keyboard_alone(boss: User, open_admin: Callable[..., Page]) -> None:
    job = make_job("queued")
    page = open_admin(boss, f"{JOBS}{job.pk}/change/")
    page.get_by_role("link", name="Discard").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Discard job {job.pk}?")
    page.get_by_label("Reason").focus()
    page.keyboard.type("not needed")
    page.keyboard.press("Enter")
    expect(page.locator("h1 .skipqueue-badge")).to_have_text("discarded")


def test_a_user_who_may_only_view_jobs_sees_no_buttons(viewer: User, open_admin: Callable[..., Page]) -> None:
    jobs = make_everything()
    page = open_admin(viewer, JOBS)
    expect(page.locator("#result_list")).to_be_visible()
    expect(page.locator("select[name=action], #result_list input")).to_have_count(0)
    for job in jobs.values():
        page.goto(f"{page.url.partition(JOBS)[0]}{JOBS}{job.pk}/change/")
        expect(page.locator("h1 .skipqueue-badge")).to_be_visible()
        expect(page.locator("#content-main form, #content-main button:not([data-copy])")).to_have_count(0)


def test_a_queue_is_paused_for_a_typed_number_of_minutes_and_resumed(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    make_job(queue_name="invoices")
    make_worker()
    page = open_admin(boss, QUEUES)
    page.get_by_role("link", name="Pause the queue invoices").click()
    page.get_by_label("How long").select_option("own")
    page.get_by_label("Minutes:", exact=True).fill("90")
    page.get_by_label("Reason").fill("the provider is down")
    page.get_by_role("button", name="Pause the queue").click()
    row = page.locator("#result_list tr", has_text="invoices")
    expect(row.locator(".skipqueue-badge")).to_have_text("paused")
    expect(row).to_contain_text("by boss")
    expect(row).to_contain_text("the provider is down")
    page.get_by_role("button", name="Resume the queue invoices").click()
    expect(page.locator(".messagelist")).to_have_text("The queue “invoices” was resumed.")
    expect(row.locator(".skipqueue-badge")).to_have_count(0)
    assert complaints == []


def test_an_operator_restarts_a_worker(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints, runworker: Callable[..., Any]
) -> None:
    runworker("--name", "m")
    (worker,) = workers()
    page = open_admin(boss, WORKERS)
    page.get_by_role("link", name="Restart the worker m/1?").click()
    expect(page.locator("h1").last).to_have_text("Restart the worker m/1?")
    page.get_by_role("button", name="Restart").click()
    expect(page.locator(".messagelist")).to_have_text("The worker m/1 restarts once its jobs have ended.")
    wait_until(lambda: Worker.objects.exclude(pk=worker.pk).exists())
    assert complaints == []


def test_no_page_breaks_the_content_security_policy_or_runs_scripts_of_a_job(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    jobs = make_everything()
    page = open_admin(boss, JOBS)
    root = page.url.removesuffix(JOBS)
    expect(page.locator(".skipqueue-banner")).to_be_visible()
    pages = [f"{JOBS}?status=failed&q=x", f"{JOBS}?queue=default&time=day", QUEUES, WORKERS]
    for job in jobs.values():
        pages += [f"{JOBS}{job.pk}/{name}/" for name in ("change", "history", "delete")]
    for address in pages:
        response = page.goto(root + address)
        assert response is not None
        assert response.status == (403 if "running" in address else 200)
        assert "Content-Security-Policy" in str(response.all_headers()) or response.headers["content-security-policy"]
        expect(page.locator("#content")).to_be_visible()
    assert complaints == []


def test_a_page_that_breaks_the_content_security_policy_is_noticed(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    page = open_admin(boss, JOBS)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))")
    page.reload()
    assert len(complaints) == 2


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=skip_by_default)])
def test_every_status_is_a_word_with_enough_contrast(boss: User, open_admin: Callable[..., Page], scheme: str) -> None:
    jobs = make_everything()
    page = open_admin(boss, JOBS, color_scheme=scheme)
    contrasts = page.locator(".skipqueue-badge, .skipqueue-count, .skipqueue-banner").evaluate_all(CONTRASTS)
    assert {*STATUSES, "retrying"} <= {text for text, _ in contrasts}
    scene.make_workers()
    page.goto(page.url.removesuffix(JOBS) + WORKERS)
    states = page.locator(".skipqueue-badge, .skipqueue-banner").evaluate_all(CONTRASTS)
    assert {"live", "late", "stale"} <= {text for text, _ in states}
    page.goto(page.url.removesuffix(WORKERS) + f"{JOBS}{jobs['failed'].pk}/change/")
    page_of_job = page.locator(".skipqueue-outcome, .skipqueue-badge").evaluate_all(CONTRASTS)
    assert min(contrast for _, contrast in contrasts + states + page_of_job) >= 4.5


def test_a_narrow_screen_scrolls_the_table_and_not_the_page(boss: User, open_admin: Callable[..., Page]) -> None:
    jobs = make_everything()
    page = open_admin(boss, JOBS, viewport={"width": 390, "height": 800})
    root = page.url.removesuffix(JOBS)
    pages = [f"{JOBS}{jobs['failed'].pk}/change/", f"{JOBS}{jobs['failed'].pk}/history/"]
    for address in (
        JOBS,
        QUEUES,
        f"{QUEUES}pause/?queue=default",
        WORKERS,
        *pages,
        f"{JOBS}{jobs['queued'].pk}/reschedule/",
    ):
        page.goto(root + address)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def visible_rows(page: Page) -> int:
    """Return the number of jobs that are visible without scrolling."""
    count_visible = "rows => rows.filter(row => row.getBoundingClientRect().bottom <= window.innerHeight).length"
    return int(page.locator("#result_list tbody tr").evaluate_all(count_visible))


def _task() -> None:
    """A task that is registered, but not run."""


# With the larger number, the ids of the jobs have 13 digits.
@pytest.mark.parametrize("jobs_before", [pytest.param(0, marks=skip_by_default), 10**12])
def test_a_laptop_shows_twelve_jobs_and_breaks_no_word(
    boss: User, open_admin: Callable[..., Page], registry: Registry, jobs_before: int
) -> None:
    workers = make_worker(name="web-1/1"), make_worker(name="web-1/2")
    scene.make_jobs(list(workers))
    Job.objects.update(id=F("id") + jobs_before)
    for task in Job.objects.values_list("task", flat=True).distinct():
        register(name=task)(_task)  # an unknown task would be a problem, shown above the list
    page = open_admin(boss, JOBS, viewport=DESKTOP)
    assert visible_rows(page) >= 12
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    one_line = "cells => cells.every(cell => cell.getClientRects().length === 1)"
    for part in ("badge", "name", "detail", "queue", "error"):
        assert page.locator(f"#result_list .skipqueue-{part}").evaluate_all(one_line), part
    assert page.locator("#result_list time").evaluate_all(one_line)
    expect(page.locator("#changelist-filter")).to_be_visible()


def test_breadcrumbs_look_as_on_the_pages_of_django(boss: User, open_admin: Callable[..., Page]) -> None:
    get_style = """element => {
        const {backgroundColor, color, paddingLeft} = getComputedStyle(element);
        return [backgroundColor, color, paddingLeft, getComputedStyle(element.querySelector("a")).color];
    }"""
    page = open_admin(boss, JOBS, viewport=DESKTOP)
    our_style = page.locator(".breadcrumbs").evaluate(get_style)
    page.goto(page.url.removesuffix(JOBS) + "auth/user/")
    assert our_style == page.locator(".breadcrumbs").evaluate(get_style)


def test_tabs_buttons_and_cards_have_no_underline(boss: User, open_admin: Callable[..., Page]) -> None:
    job = make_job("failed")
    page = open_admin(boss, JOBS, viewport=DESKTOP)
    root = page.url.removesuffix(JOBS)
    selectors = (".skipqueue-nav a", ".skipqueue-tabs a", ".skipqueue-ranges a", ".skipqueue-number", "a.button")
    seen_selectors: set[str] = set()
    for address in (JOBS, f"{JOBS}dashboard/", f"{JOBS}{job.pk}/change/"):
        page.goto(root + address)
        for selector in selectors:
            decorations = page.locator(selector).evaluate_all(
                "links => links.map(a => getComputedStyle(a).textDecorationLine)"
            )
            assert {*decorations} <= {"none"}, (address, selector)
            seen_selectors |= {selector} if decorations else set()
    assert seen_selectors == {*selectors}


GERMAN: dict[Text, Text] = {
    "arguments, last error": "Argumente, Fehler",
    "queue": "Warteschlange",
    "attempts": "Versuche",
    "queued": "in der Warteschlange",
    "completed": "abgeschlossen",
    "failed": "fehlgeschlagen",
    "retrying": "wird wiederholt",
    "next in %(span)s": "erneut in %(span)s",
    "waiting %(span)s": "wartet seit %(span)s",
    "due %(span)s ago": "fällig seit %(span)s",
}
"""Translations that are longer than the English texts."""


def test_a_laptop_shows_all_columns_with_longer_german_words(
    boss: User, open_admin: Callable[..., Page], registry: Registry, settings: Any, tmp_path: Path
) -> None:
    use_translations(settings, tmp_path, GERMAN)
    scene.make_jobs([make_worker(name="web-1/1"), make_worker(name="web-1/2")])
    page = open_admin(boss, JOBS, viewport=DESKTOP)
    expect(page.get_by_role("columnheader", name="Warteschlange")).to_be_visible()
    assert page.locator("#result_list").evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")


@pytest.mark.parametrize(
    "width", [390, pytest.param(820, marks=skip_by_default), pytest.param(1000, marks=skip_by_default)]
)
def test_on_a_narrow_screen_jobs_are_cards_and_filters_are_folded(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints, registry: Registry, width: int
) -> None:
    scene.make_jobs([make_worker(), make_worker()])
    page = open_admin(boss, f"{JOBS}?status=retrying", viewport={"width": width, "height": 900})
    error = page.locator(".skipqueue-error").first
    expect(error).to_be_visible()
    box = error.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    card = page.locator("#result_list tbody tr").first.bounding_box()
    assert card is not None
    assert card["width"] > width - 100
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    expect(page.locator("#result_list thead")).to_be_hidden()
    expect(page.locator("#nav-sidebar")).to_be_hidden()
    expect(page.locator("#changelist-filter")).to_be_hidden()
    page.locator(".skipqueue-filters > summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#changelist-filter")).to_be_visible()
    page.locator("#changelist-filter").get_by_role("link", name="send_receipt").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(7)
    assert complaints == []


def test_retrying_jobs_are_run_now_from_their_tab(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints
) -> None:
    scene.make_jobs([make_worker(), make_worker()])
    page = open_admin(boss, JOBS)
    page.get_by_role("link", name="Retrying 7").click()
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option("run_now_selected")
    page.locator("button[name=index]").click()
    expect(page.locator("h1")).to_have_text("Run 7 jobs now?")
    page.get_by_label("Reason").fill("the mail server is back")
    page.get_by_role("button", name="Run 7 jobs now").click()
    expect(page.locator(".messagelist")).to_have_text("7 jobs are due now.")
    expect(page.get_by_role("link", name="Retrying 0")).to_be_visible()
    assert complaints == []


def test_a_search_without_a_match_links_to_other_lists(boss: User, open_admin: Callable[..., Page]) -> None:
    job = make_job("failed", last_error="KeyError: 'psp'")
    page = open_admin(boss, f"{JOBS}?status=completed&q=KeyError")
    expect(page.locator(".skipqueue-empty")).to_contain_text("No match.")
    page.locator(".skipqueue-empty").get_by_role("link", name="failed").click()
    expect(page.locator("#result_list")).to_contain_text(f"#{job.pk}")

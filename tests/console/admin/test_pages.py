"""Every page of the admin in a real Chromium: accessibility by axe-core, the content security policy, and widths."""

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_skipqueue.console.admin.ui import time_limit
from django_skipqueue.queue.store import Store

from ...app.sessions import Session
from .browser import Complaints, skip_by_default
from .pages import JOBS, QUESTIONS, made_addresses  # noqa: F401 (a fixture)
from .pictures import DESKTOP, PHONE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()

FIND_VIOLATIONS = """async () => {
    const ours = {exclude: [["#header"], ["#nav-sidebar"], ["#toggle-nav-sidebar"], [".breadcrumbs"]]};
    const found = await axe.run(ours, {resultTypes: ["violations"], preload: false});
    const serious = found.violations.filter(violation => ["serious", "critical"].includes(violation.impact));
    const text = node => `${node.html.slice(0, 200)} ${node.any.concat(node.all).map(check => check.message)}`;
    return serious.flatMap(violation => violation.nodes.map(node => `${violation.id}: ${text(node)}`));
}"""

IS_TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"

LIGHT: dict[str, Any] = {"viewport": DESKTOP}
DARK: dict[str, Any] = {"viewport": DESKTOP, "color_scheme": "dark"}
NARROW: dict[str, Any] = {"viewport": PHONE}


SUBMIT_FORM = """fields => {
    const form = document.createElement("form");
    form.method = "post";
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
    for (const [name, value] of Object.entries({...fields, csrfmiddlewaretoken: token})) {
        const field = document.createElement("input");
        [field.type, field.name, field.value] = ["hidden", name, value];
        form.append(field);
    }
    document.body.append(form);
    form.submit();
}"""


def open_each(page: Page, addresses: Mapping[str, str]) -> Iterator[str]:
    """Open every page and every question, one after the other. Yield the name of the open page or question."""
    home_address = page.url
    for name, address in addresses.items():
        response = page.goto(home_address + address)
        assert response is not None
        assert response.ok, name
        yield name
    for name, fields in QUESTIONS.items():
        page.goto(home_address + JOBS)
        page.evaluate(SUBMIT_FORM, fields)
        expect(page.locator("input[name=confirmed]")).to_be_attached()
        yield name


def axe_findings(page: Page) -> list[str]:
    """Return the problems that axe-core finds in the open page."""
    page.evaluate(AXE)
    findings: list[str] = page.evaluate(FIND_VIOLATIONS)
    return findings


@pytest.mark.slow  # axe examines every page
@pytest.mark.parametrize(
    "look", [LIGHT, pytest.param(DARK, marks=skip_by_default), pytest.param(NARROW, marks=skip_by_default)], ids=str
)
def test_axe_finds_nothing_serious(
    addresses: Mapping[str, str], open_admin: Callable[..., Page], look: dict[str, Any]
) -> None:
    page = open_admin(User.objects.create_superuser("ann"), bypass_csp=True, **look)
    findings_by_page = {name: findings for name in open_each(page, addresses) if (findings := axe_findings(page))}
    assert findings_by_page == {}


narrow_first = pytest.mark.parametrize(
    "look", [NARROW, pytest.param(LIGHT, marks=skip_by_default), pytest.param(DARK, marks=skip_by_default)], ids=str
)


@pytest.mark.slow  # the test opens every page in a browser
@narrow_first
def test_every_page_keeps_the_content_security_policy_and_fits_its_window(
    addresses: Mapping[str, str], open_admin: Callable[..., Page], complaints: Complaints, look: dict[str, Any]
) -> None:
    page = open_admin(User.objects.create_superuser("ann"), **look)
    too_wide = [name for name in open_each(page, addresses) if page.evaluate(IS_TOO_WIDE)]
    assert complaints == []
    assert too_wide == []


FIND_BROKEN_TEXTS = """
() => [...document.querySelectorAll("#content .skipqueue-name, #content th, #content code, .skipqueue-nav a")]
    .filter(element => element.checkVisibility())
    .filter(element => {
        const text = document.createRange();
        text.selectNodeContents(element);
        const lines = new Set([...text.getClientRects()].map(rect => Math.round(rect.bottom / 8)));
        return lines.size > 2 * element.textContent.trim().split(/[\\s.]+/).length;
    })
    .map(element => element.textContent.trim())
"""
"""JavaScript that returns the texts that are broken into many more lines than they have words."""

FIND_TALL_ROWS = """
() => [...document.querySelectorAll("#content tbody tr")]
    .filter(row => getComputedStyle(row).display === "table-row" && row.clientHeight > 150)
    .map(row => row.textContent.trim())
"""
"""JavaScript that returns the table rows that a narrow column makes too tall."""

TABLET_WIDTHS = (768, 820, 900, 1_000, 1_100)


@pytest.mark.slow  # the test opens every page in a browser
@pytest.mark.parametrize(
    "widths", [TABLET_WIDTHS[1:2], pytest.param(TABLET_WIDTHS[:1] + TABLET_WIDTHS[2:], marks=skip_by_default)], ids=str
)
def test_on_a_tablet_no_page_scrolls_sideways_or_breaks_a_name(
    addresses: Mapping[str, str], open_admin: Callable[..., Page], widths: tuple[int, ...]
) -> None:
    page = open_admin(User.objects.create_superuser("ann"), viewport=DESKTOP)
    problems_by_page_and_width = {}
    for name in open_each(page, addresses):
        for width in widths:
            page.set_viewport_size({"width": width, "height": 1_100})
            problems_by_page_and_width[name, width] = (
                page.evaluate(IS_TOO_WIDE),
                page.evaluate(FIND_BROKEN_TEXTS),
                page.evaluate(FIND_TALL_ROWS),
            )
    assert {
        page_and_width: problems
        for page_and_width, problems in problems_by_page_and_width.items()
        if problems != (False, [], [])
    } == {}


@pytest.fixture
def _locked_jobs(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold a lock on the table of jobs, and let each query wait for 0.2 seconds."""
    monkeypatch.setattr(time_limit, "QUERY_SECONDS", 0.2)
    session = Session()
    session.begin()
    session(lambda: Store("default").execute("LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE"))
    yield
    session.rollback()
    session.close()


@pytest.mark.usefixtures("_locked_jobs")
@narrow_first
def test_the_page_about_a_slow_database_fits_into_the_window(
    open_admin: Callable[..., Page], complaints: Complaints, look: dict[str, Any]
) -> None:
    boss = User.objects.create_superuser("ann")
    page = open_admin(boss, JOBS, **look)
    expect(page.locator("h1", has_text="The database took too long")).to_be_visible()
    assert not page.evaluate(IS_TOO_WIDE)
    assert [complaint for complaint in complaints if "status of 503" not in complaint] == []
    assert axe_findings(open_admin(boss, JOBS, bypass_csp=True, **look)) == []

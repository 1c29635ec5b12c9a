"""The charts and causes of the dashboard in a browser, on small screens."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from ....console.admin import scene
from ....console.admin.browser import Complaints, skip_by_default
from ....console.admin.dashboard.test_browser import DASHBOARD, boss, pytestmark
from ....console.admin.pictures import PHONE
from ..admin_pages import make_evening, make_rollups

__all__ = ["boss", "pytestmark"]

FAILURES = "django_skipqueue/job/failures/"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=skip_by_default)])
def test_the_dashboard_fits_a_phone(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints, scheme: str
) -> None:
    scene.make_jobs(scene.make_workers())
    make_rollups(hours=1)
    page = open_admin(boss, DASHBOARD, viewport=PHONE, color_scheme=scheme)
    expect(page.locator(".skipqueue-chart")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert complaints == []


NARROW_NAMES = """
() => [...document.querySelectorAll("#content-main table .skipqueue-name")]
    .filter(name => name.checkVisibility() && name.getClientRects().length > 3)
    .map(name => name.textContent)
"""
"""Returns the names in tables that are broken into more than three lines."""


@pytest.mark.parametrize("width", [768, 820, pytest.param(1000, marks=skip_by_default), 1099])
def test_on_a_tablet_no_page_scrolls_sideways_and_no_name_breaks_into_letters(
    boss: User, open_admin: Callable[..., Page], complaints: Complaints, width: int
) -> None:
    scene.make_jobs(scene.make_workers())
    make_evening(hours=1)
    scene.make_schedules()
    scene.make_limits()
    scene.make_batches()
    page = open_admin(boss, DASHBOARD, viewport={"width": width, "height": 1100})
    for address in (DASHBOARD, FAILURES):
        page.goto(page.url.partition("django_skipqueue")[0] + address)
        expect(page.locator(".skipqueue-causes tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(NARROW_NAMES) == []
    assert complaints == []

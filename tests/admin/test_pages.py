"""Every page of the admin in a real Chromium: what axe-core finds in it, and what the browser complains about."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page

from .browser import Complaints
from .pictures import DESKTOP, PHONE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()

FIND = """async () => {
    const found = await axe.run({exclude: [["#header"], ["#nav-sidebar"], ["#toggle-nav-sidebar"], [".breadcrumbs"]]});
    const serious = found.violations.filter(each => ["serious", "critical"].includes(each.impact));
    const text = node => `${node.html.slice(0, 200)} ${node.any.concat(node.all).map(check => check.message)}`;
    return serious.flatMap(each => each.nodes.map(node => `${each.id}: ${text(node)}`));
}"""

LOOKS: Mapping[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE},
}


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious(addresses: Mapping[str, str], open_admin: Callable[..., Page], look: str) -> None:
    page = open_admin(User.objects.create_superuser("ann"), bypass_csp=True, **LOOKS[look])
    home, found = page.url, {}
    for name, address in addresses.items():
        page.goto(home + address)
        page.evaluate(AXE)
        if findings := page.evaluate(FIND):
            found[name] = findings
    assert found == {}


@pytest.mark.parametrize("look", ["light", "phone"])
def test_every_page_keeps_the_policy_and_fits_into_its_window(
    addresses: Mapping[str, str], open_admin: Callable[..., Page], complaints: Complaints, look: str
) -> None:
    page = open_admin(User.objects.create_superuser("ann"), **LOOKS[look])
    home, too_wide = page.url, []
    for name, address in addresses.items():
        answer = page.goto(home + address)
        assert answer is not None
        assert answer.ok, name
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            too_wide.append(name)
    assert complaints == []
    assert too_wide == []

"""The navigation bar above every page: its entries, the mark at the current entry, and the numbers of problems."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect

from django_skipqueue.console.admin.bar import BAR_ENTRIES
from django_skipqueue.console.admin.notices import notices_cache
from django_skipqueue.console.parts import consoles
from django_skipqueue.console.rules.examination import all_rules

from ....app.limit_rows import make_halted
from ....app.rows import make_job, make_worker
from ....parts.schedules.rows import make_schedule
from ..conftest import LIST, QUEUES
from ..pages import JOBS, made_addresses  # noqa: F401 (a fixture)

pytestmark = pytest.mark.django_db(transaction=True)

LABELS = ["Dashboard", "Jobs", "Failing now", "Queues", "Workers", "Schedules", "Batches", "Limits", "Doctor"]
ENTRY_OF_PAGE = {
    "dashboard": "Dashboard",
    "failures": "Failing now",
    "cause": "Failing now",
    "limits": "Limits",
    "doctor": "Doctor",
    "queues": "Queues",
    "pause": "Queues",
    "workers": "Workers",
    "stop": "Workers",
    "schedules": "Schedules",
    "add schedule": "Schedules",
    "history of a schedule": "Schedules",
    "batches": "Batches",
    "running batch": "Batches",
    "jobs": "Jobs",
    "failed job": "Jobs",
    "history": "Jobs",
    "discard": "Jobs",
    "progress": "Jobs",
    "archive": "Jobs",
    "archived job": "Jobs",
    "history of an archived job": "Jobs",
}
"""For the name of each page, the entry of the bar that is marked as current on the page."""

OWN_PAGES = ("dashboard", "jobs", "failures", "queues", "workers", "schedules", "batches", "limits", "doctor")
"""The pages to which the entries of the bar lead."""


def bar_entries(client: Client, address: str) -> dict[str, tuple[str, str]]:
    """Return the entries of the bar by label, each with `aria-current` and the title of its number of problems."""
    html = client.get(address).text
    (nav,) = re.findall(r'<nav class="skipqueue-nav".*?</nav>', html, re.DOTALL)
    entries = {}
    for attributes, content in re.findall(r"<a ([^>]*)>(.*?)</a>", nav, re.DOTALL):
        current = re.search(r'aria-current="(\w+)"', attributes)
        title = re.search(r'title="([^"]*)"', content)
        label = re.sub(r"<span.*", "", content, flags=re.DOTALL).strip()
        entries[label] = (current[1] if current else "", title[1] if title else "")
    return entries


def bar_numbers(client: Client) -> dict[str, str]:
    """Return the title of the number of problems for each entry that shows one, by the entry's label."""
    notices_cache.clear()
    return {label: words for label, (_, words) in bar_entries(client, LIST).items() if words}


def test_the_bar_of_every_page_has_all_entries_and_marks_the_current_one(
    addresses: Mapping[str, str], operator: Client
) -> None:
    for name, address in addresses.items():
        if name == "index":  # the index of the whole admin site has no bar
            continue
        entries = bar_entries(operator, f"/admin/{address}")
        assert list(entries) == LABELS, name
        marked = [label for label, (current, _) in entries.items() if current]
        assert marked == ([] if name == "app" else [ENTRY_OF_PAGE.get(name, marked[0])]), name
        if name in OWN_PAGES:
            aria_current, _ = entries[ENTRY_OF_PAGE[name]]
            assert aria_current == "page", name


def test_the_list_of_jobs_links_to_the_archive(addresses: Mapping[str, str], operator: Client, settings: Any) -> None:
    link = '<a href="/admin/django_skipqueue/archivedjob/">Archive</a>'
    assert link in operator.get(LIST).text
    for address in (QUEUES, f"/admin/{addresses['archive']}"):
        assert link not in operator.get(address).text
    settings.SKIPQUEUE = {}
    assert link not in operator.get(LIST).text


def test_the_bar_has_no_entry_for_a_page_that_the_user_may_not_see(log_in: Callable[..., Client]) -> None:
    client = log_in("view_queue", "view_schedule")
    assert list(bar_entries(client, QUEUES)) == ["Queues", "Schedules"]


def test_the_bar_has_no_number_while_nothing_is_wrong(operator: Client) -> None:
    make_worker()
    make_job("completed")
    make_schedule(due=-600)
    assert bar_numbers(operator) == {}


def test_an_entry_has_the_number_of_the_problems_that_its_page_shows(operator: Client) -> None:
    make_worker(queues=["default"])
    make_worker(queues=["default"], heartbeat=timedelta(seconds=-40))
    assert bar_numbers(operator) == {"Workers": "1 problem", "Doctor": "1 problem"}
    make_job(queue_name="unserved")
    assert bar_numbers(operator) == {"Workers": "1 problem", "Queues": "1 problem", "Doctor": "2 problems"}


def test_the_entries_of_parts_have_their_numbers_of_problems(operator: Client) -> None:
    make_worker()
    make_schedule("late", due=900)
    make_halted("sequence:t k=1", minutes=5, waiting=2)
    assert bar_numbers(operator) == {"Schedules": "1 problem", "Limits": "1 problem", "Doctor": "2 problems"}


def test_every_rule_of_an_entry_is_part_of_the_verdict() -> None:
    entries = (*BAR_ENTRIES, *(entry for console in consoles() for entry in console.bar_entries))
    assert {code for entry in entries for code in entry.rules} <= {rule.code for rule in all_rules() if rule.is_watched}


@pytest.mark.browser
def test_the_numbers_of_the_bar_are_refreshed_with_the_page(
    open_admin: Callable[..., Page], complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_admin(User.objects.create_superuser("boss"), JOBS)
    entry = page.get_by_role("navigation", name="Job queue").get_by_role("link", name="Queues")
    expect(entry.locator(".skipqueue-trouble")).to_have_count(0)
    make_job(queue_name="unserved")
    make_worker(queues=["default"])
    notices_cache.clear()
    page.get_by_role("link", name="Refresh", exact=True).click()
    expect(entry.locator(".skipqueue-trouble")).to_contain_text("1 problem")
    assert complaints == []

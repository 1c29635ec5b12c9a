"""Every address of a page carries the database that the page shows."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import Client

from django_skipqueue.console.admin.jobs.job_admin import JobAdmin
from django_skipqueue.models import Schedule

from ..pages import JOBS, QUESTIONS, made_addresses  # noqa: F401 (a fixture)
from .parsed import Page, alias_of, with_alias

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

OUTSIDE = {"index", "app"}
"""Pages of Django's admin site itself, which changes no job."""


@pytest.fixture
def shown(addresses: Mapping[str, str], settings: Any) -> Mapping[str, str]:
    """Return the address of each page, for a database that is not the default."""
    settings.SKIPQUEUE = {"ARCHIVE": None, "DATABASES": ("other", "default"), "RETIRING": ()}
    return {name: with_alias(address, "default") for name, address in addresses.items() if name not in OUTSIDE}


def lost(page: Page, *, shown: str = "default") -> list[str]:
    """The addresses that lead to another database."""
    links = [address for address in page.links if alias_of(address) != shown]
    return links + [form.action for form in page.own_forms if form.alias != shown]


def test_every_link_and_form_carries_the_database(shown: Mapping[str, str], operator: Client) -> None:
    found, links, forms = {}, 0, 0
    for name, address in shown.items():
        response = operator.get(f"/admin/{address}")
        assert response.status_code == 200, name
        page = Page(response.text, f"/admin/{address}")
        assert set(page.switch) == {"default", "other"}, name
        assert set(page.table) == ({"default", "other"} if name == "dashboard" else set()), name
        links, forms = links + len(page.links), forms + len(page.own_forms)
        found[name] = lost(page)
    assert {name: addresses for name, addresses in found.items() if addresses} == {}
    assert links > 500
    assert forms > 50


def test_the_questions_carry_the_database(shown: Mapping[str, str], operator: Client) -> None:
    address = f"/admin/{with_alias(JOBS, 'default')}"
    for name, posted in QUESTIONS.items():
        page = Page(operator.post(address, posted).text, address)
        assert any("confirmed" in form.fields for form in page.own_forms), name
        assert lost(page) == [], name


def test_the_part_of_a_page_that_a_script_fetches_carries_the_database(
    shown: Mapping[str, str], operator: Client
) -> None:
    for name in ("running job", "failed job", "progress"):
        page = Page(operator.get(f"/admin/{shown[name]}&fragment=1").text, f"/admin/{shown[name]}")
        assert page.links or page.own_forms
        assert (lost(page), page.switch) == ([], {}), name


def test_with_one_database_nothing_is_added(addresses: Mapping[str, str], operator: Client) -> None:
    for name, address in addresses.items():
        html = operator.get(f"/admin/{address}").text
        page = Page(html, f"/admin/{address}")
        assert (page.switch, page.table) == ({}, {})
        assert [each for each in page.links if alias_of(each)] == []
        assert [form for form in page.own_forms if form.alias] == [], name
        assert "skipqueue-databases" not in html


def test_a_page_whose_address_names_no_database_carries_the_one_that_it_shows(
    shown: Mapping[str, str], operator: Client
) -> None:
    for name in ("jobs", "dashboard", "failures", "limits", "queues", "add schedule", "batches", "workers"):
        address = shown[name].partition("database=")[0]
        page = Page(operator.get(f"/admin/{address}").text, f"/admin/{address}")
        assert page.links
        assert lost(page, shown="other") == [], name


def test_the_links_between_the_pages_of_a_history_carry_the_database(
    shown: Mapping[str, str], operator: Client
) -> None:
    address = f"/admin/{shown['history of a schedule']}"
    pk = address.split("/")[-3]
    user = User.objects.get()
    about = ContentType.objects.get_for_model(Schedule)
    LogEntry.objects.bulk_create(
        LogEntry(user=user, content_type=about, object_id=f"default:{pk}", object_repr="x", action_flag=2)
        for _ in range(101)
    )
    page = Page(operator.get(address).text, address)
    assert [each for each in page.links if "p=2" in each] != []
    assert lost(page) == []
    assert re.search(r"""(class="this-page"|aria-current="page")>2<""", operator.get(f"{address}&p=2").text)


def test_what_django_redirects_to_carries_the_database(
    shown: Mapping[str, str], operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    monkeypatch.setattr(JobAdmin, "list_max_show_all", 2)
    beyond = operator.get(f"/admin/{shown['jobs']}&p=999")
    nothing_chosen = operator.post(f"/admin/{shown['jobs']}", {"action": "retry_selected", "index": "0"})
    for response in (beyond, nothing_chosen):
        assert response.status_code == 302
        assert alias_of(response.headers["Location"]) == "default"


def test_a_page_remembers_the_filters_of_its_list_once(shown: Mapping[str, str], operator: Client) -> None:
    address = f"/admin/{shown['schedule']}&_changelist_filters=a%3Db%26database%3Ddefault"
    page = Page(operator.get(address).text, address)
    (history,) = [each for each in page.links if "/history/" in each]
    filters = {"_changelist_filters": ["a=b&database=default"], "database": ["default"]}
    assert parse_qs(urlsplit(history).query) == filters

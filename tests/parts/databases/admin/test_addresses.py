"""Every address on a page names the database that the page shows."""

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

from ....console.admin.pages import JOBS, QUESTIONS, made_addresses  # noqa: F401 (a fixture)
from .parsed import Page, database_of, with_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

OUTSIDE = {"index", "app"}
"""Pages of Django's admin site that do not depend on a database of the queue."""


@pytest.fixture
def pages_of_default(addresses: Mapping[str, str], settings: Any) -> Mapping[str, str]:
    """The address of each page for `default`, which here is not the first database of the setting."""
    settings.SKIPQUEUE = {"ARCHIVE": None, "DATABASES": ("other", "default"), "RETIRING": ()}
    return {name: with_database(address, "default") for name, address in addresses.items() if name not in OUTSIDE}


def addresses_of_another_database(page: Page, *, shown: str = "default") -> list[str]:
    """The links and forms of a page that lead to another database than the shown one."""
    links = [address for address in page.links if database_of(address) != shown]
    return links + [form.action for form in page.own_forms if form.alias != shown]


def test_every_link_and_form_carries_the_database(pages_of_default: Mapping[str, str], operator: Client) -> None:
    wrong_addresses, links, forms = {}, 0, 0
    for name, address in pages_of_default.items():
        response = operator.get(f"/admin/{address}")
        assert response.status_code == 200, name
        page = Page(response.text, f"/admin/{address}")
        assert set(page.switch) == {"default", "other"}, name
        assert set(page.table) == ({"default", "other"} if name == "dashboard" else set()), name
        links, forms = links + len(page.links), forms + len(page.own_forms)
        wrong_addresses[name] = addresses_of_another_database(page)
    assert {name: addresses for name, addresses in wrong_addresses.items() if addresses} == {}
    assert links > 500
    assert forms > 50


def test_the_forms_of_questions_carry_the_database(pages_of_default: Mapping[str, str], operator: Client) -> None:
    address = f"/admin/{with_database(JOBS, 'default')}"
    for name, answer in QUESTIONS.items():
        page = Page(operator.post(address, answer).text, address)
        assert any("confirmed" in form.fields for form in page.own_forms), name
        assert addresses_of_another_database(page) == [], name


def test_the_part_of_a_page_that_a_script_fetches_carries_the_database(
    pages_of_default: Mapping[str, str], operator: Client
) -> None:
    for name in ("running job", "failed job", "progress"):
        page = Page(
            operator.get(f"/admin/{pages_of_default[name]}&fragment=1").text, f"/admin/{pages_of_default[name]}"
        )
        assert page.links or page.own_forms
        assert (addresses_of_another_database(page), page.switch) == ([], {}), name


def test_with_one_database_no_address_names_it(addresses: Mapping[str, str], operator: Client) -> None:
    for name, address in addresses.items():
        html = operator.get(f"/admin/{address}").text
        page = Page(html, f"/admin/{address}")
        assert (page.switch, page.table) == ({}, {})
        assert [link for link in page.links if database_of(link)] == []
        assert [form for form in page.own_forms if form.alias] == [], name
        assert "skipqueue-databases" not in html


def test_the_links_of_a_page_name_the_shown_database_even_if_its_address_does_not(
    pages_of_default: Mapping[str, str], operator: Client
) -> None:
    for name in ("jobs", "dashboard", "failures", "limits", "queues", "add schedule", "batches", "workers"):
        address = pages_of_default[name].partition("database=")[0]
        page = Page(operator.get(f"/admin/{address}").text, f"/admin/{address}")
        assert page.links
        assert addresses_of_another_database(page, shown="other") == [], name


def test_the_links_between_the_pages_of_a_history_carry_the_database(
    pages_of_default: Mapping[str, str], operator: Client
) -> None:
    address = f"/admin/{pages_of_default['history of a schedule']}"
    pk = address.split("/")[-3]
    user = User.objects.get()
    schedule_type = ContentType.objects.get_for_model(Schedule)
    LogEntry.objects.bulk_create(
        LogEntry(user=user, content_type=schedule_type, object_id=f"default:{pk}", object_repr="x", action_flag=2)
        for _ in range(101)
    )
    page = Page(operator.get(address).text, address)
    assert [link for link in page.links if "p=2" in link] != []
    assert addresses_of_another_database(page) == []
    assert re.search(r"""(class="this-page"|aria-current="page")>2<""", operator.get(f"{address}&p=2").text)


def test_redirects_of_django_carry_the_database(
    pages_of_default: Mapping[str, str], operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    monkeypatch.setattr(JobAdmin, "list_max_show_all", 2)
    after_the_last_page = operator.get(f"/admin/{pages_of_default['jobs']}&p=999")
    without_selection = operator.post(f"/admin/{pages_of_default['jobs']}", {"action": "retry_selected", "index": "0"})
    for response in (after_the_last_page, without_selection):
        assert response.status_code == 302
        assert database_of(response.headers["Location"]) == "default"


def test_the_links_of_a_page_contain_the_filters_of_its_list_only_once(
    pages_of_default: Mapping[str, str], operator: Client
) -> None:
    address = f"/admin/{pages_of_default['schedule']}&_changelist_filters=a%3Db%26database%3Ddefault"
    page = Page(operator.get(address).text, address)
    (history,) = [link for link in page.links if "/history/" in link]
    filters = {"_changelist_filters": ["a=b&database=default"], "database": ["default"]}
    assert parse_qs(urlsplit(history).query) == filters

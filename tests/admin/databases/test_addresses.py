"""Every address of a page carries the database that the page shows."""

from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.parts.databases.addresses import Carrier

from ..pages import JOBS, QUESTIONS, made_addresses  # noqa: F401 (a fixture)
from .parsed import Page, alias_of, with_alias

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

OUTSIDE = {"index", "app"}
"""Pages of Django's admin site itself, which changes no job."""


@pytest.fixture
def shown(addresses: Mapping[str, str], settings: Any) -> Mapping[str, str]:
    """The address of each page of a database that is not the one of an address that names none."""
    settings.SKIPQUEUE = {"ARCHIVE": None, "DATABASES": ("other", "default"), "RETIRING": ()}
    return {name: with_alias(address, "default") for name, address in addresses.items() if name not in OUTSIDE}


def lost(page: Page) -> list[str]:
    """The addresses that lead to another database."""
    links = [address for address in page.links if alias_of(address) != "default"]
    return links + [form.action for form in page.own_forms if form.alias != "default"]


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


def test_so_do_the_questions(shown: Mapping[str, str], operator: Client) -> None:
    address = f"/admin/{with_alias(JOBS, 'default')}"
    for name, posted in QUESTIONS.items():
        page = Page(operator.post(address, posted).text, address)
        assert any("confirmed" in form.fields for form in page.own_forms), name
        assert lost(page) == [], name


def test_so_does_the_part_of_a_page_that_a_script_fetches(shown: Mapping[str, str], operator: Client) -> None:
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


@pytest.mark.parametrize(
    ("address", "carried"),
    [
        ("/admin/q/job/", "/admin/q/job/?database=a+b"),
        ("/admin/q/job/?status=failed#top", "/admin/q/job/?status=failed&database=a+b#top"),
        ("?", "?database=a+b"),
        ("?p=2", "?p=2&database=a+b"),
        ("/admin/q/job/?database=c", "/admin/q/job/?database=c"),
        ("/admin/logout/", "/admin/logout/"),
        ("https://example.com/admin/q/job/", "https://example.com/admin/q/job/"),
        ("#", "#"),
    ],
)
def test_an_address(address: str, carried: str) -> None:
    assert Carrier("a b", "/admin/q/job/", "", ["/admin/q/"]).address(address) == carried


@pytest.mark.parametrize(
    ("html", "carried"),
    [
        ('<a href="/q/?a=1&amp;b=2">', '<a href="/q/?a=1&amp;b=2&amp;database=x">'),
        ('<form method="post" class="c">', '<form method="post" class="c" action="/q/?p=1&amp;database=x">'),
        ('<form action="" method="post">', '<form method="post" action="/q/?p=1&amp;database=x">'),
        ('<form method="post" action="/q/1/">', '<form method="post" action="/q/1/?database=x">'),
        ('<form method="get">', '<form method="get"><input type="hidden" name="database" value="x">'),
        ('<form action="/elsewhere/">', '<form action="/elsewhere/">'),
        ("<pre>&lt;a href=&quot;/q/&quot;&gt;</pre>", "<pre>&lt;a href=&quot;/q/&quot;&gt;</pre>"),
    ],
)
def test_an_element(html: str, carried: str) -> None:
    assert Carrier("x", "/q/", "p=1", ["/q/"]).html(html) == carried

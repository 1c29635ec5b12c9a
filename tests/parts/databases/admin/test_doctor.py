"""The page of the doctor with several databases: it shows the findings of all databases, even while one is down."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.console.rules import examination

from ....app.rows import make_job, make_worker
from ....app.waiting import DEADLINE
from ....console.admin.conftest import LIST
from ....harness.proxy import Proxy
from ....harness.reached import NOBODY, reached_at
from .parsed import Page, with_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ("default", "other")
DOCTOR = f"{LIST}doctor/"


@pytest.fixture(autouse=True)
def _two_databases(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SKIPQUEUE = {"DATABASES": BOTH}
    monkeypatch.setattr(examination, "EXAMINATION_CONNECT_SECONDS", DEADLINE)  # long enough for a busy machine


@pytest.fixture
def unreachable(settings: Any) -> Iterator[str]:
    """The alias of a third database, at whose address nobody listens."""
    settings.SKIPQUEUE = {"DATABASES": ("unreachable", *BOTH)}
    with reached_at("unreachable", NOBODY) as alias:
        yield alias


def findings(html: str) -> list[tuple[str, str]]:
    """The code and the database of each problem on the page, in their order."""
    sections = re.findall(r'<section class="skipqueue-card" data-code="([\w-]+)".*?</h2>', html, re.DOTALL)
    headings = re.findall(r"<h2.*?</span>\s*(\w+): .*?</h2>", html, re.DOTALL)
    return list(zip(sections, headings, strict=True))


def make_orphan(using: str) -> None:
    """Make a running job whose worker is gone: a critical finding."""
    make_job("running", using=using, locked_by="web-3/1:abcdef123456", locked_at=timedelta(minutes=-12))


def test_each_finding_names_its_database_and_the_worst_comes_first(operator: Client) -> None:
    make_worker()
    make_job("completed", finished_at=timedelta(days=-3))
    make_orphan("other")
    html = operator.get(DOCTOR).text
    problems = findings(html)
    assert problems.index(("orphaned-job", "other")) < problems.index(("prune-lag", "default"))
    assert ("orphaned-job", "default") not in problems
    assert 'status=running&amp;database=other">Running jobs whose worker is gone' in html
    for alias in BOTH:
        assert f"<li>{alias}: Autovacuum is on " in html


def test_with_one_database_no_finding_names_it(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {}
    make_orphan("default")
    html = operator.get(DOCTOR).text
    assert re.search("</span> <a [^>]*>Running jobs whose worker is gone", html)
    assert "<li>Autovacuum is on " in html


def test_a_database_that_cannot_be_reached_is_a_finding(operator: Client, unreachable: str) -> None:
    make_orphan("other")
    for address in (DOCTOR, with_database(DOCTOR, unreachable), with_database(DOCTOR, "other")):
        response = operator.get(address)
        assert response.status_code == 200
        problems = findings(response.text)
        assert ("database-unusable", unreachable) in problems
        assert ("orphaned-job", "other") in problems
        assert [code for code, alias in problems if alias == unreachable] == ["database-unusable"]


def test_a_database_that_the_settings_do_not_have_is_a_finding(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": (*BOTH, "nosuch")}
    html = operator.get(DOCTOR).text
    assert ("database-unusable", "nosuch") in findings(html)
    assert "&#x27;nosuch&#x27;" in html


def test_databases_that_do_not_answer_are_waited_for_at_the_same_time(
    operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "EXAMINATION_CONNECT_SECONDS", 2.0)
    settings.SKIPQUEUE = {"DATABASES": ("default", "slow_1", "slow_2")}
    proxy = Proxy()
    proxy.stall()
    with reached_at("slow_1", proxy.settings), reached_at("slow_2", proxy.settings):
        began = time.monotonic()
        problems = findings(operator.get(DOCTOR).text)
        seconds_taken = time.monotonic() - began
        proxy.close()
    assert {alias for code, alias in problems if code == "database-unusable"} == {"slow_1", "slow_2"}
    assert seconds_taken < 3.9, "one after the other they would take four seconds"


def test_the_finding_of_a_retiring_database_counts_the_jobs_left_in_it(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    make_job(using="other")
    html = operator.get(DOCTOR).text
    assert ("retiring-database", "other") in findings(html)
    assert "Jobs left in other: 1." in html


def test_on_the_page_of_the_doctor_the_database_menu_links_to_the_lists_of_jobs(operator: Client) -> None:
    assert Page(operator.get(DOCTOR).text, LIST).switch == {alias: with_database(LIST, alias) for alias in BOTH}

"""The database that a page shows, and the pages for a database that is unknown or cannot be reached."""

import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from django_skipqueue.conf import settings as queue_settings
from django_skipqueue.console.admin.jobs.job_admin import JobAdmin
from django_skipqueue.console.admin.notices import notices_cache
from django_skipqueue.console.at_once import read_at_once
from django_skipqueue.models import Job
from django_skipqueue.parts.databases import dashboard as databases
from django_skipqueue.queue.session import backend_pid
from django_skipqueue.queue.store import Store

from ....app.rows import make_job, make_worker
from ....app.waiting import DEADLINE, wait_until
from ....console.admin.conftest import LIST, page
from ....console.admin.pages import JOBS
from ....harness.proxy import Proxy
from ....harness.reached import reached_at
from .parsed import Page, with_database

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

DASHBOARD = f"/admin/{JOBS}dashboard/"


@pytest.fixture(autouse=True)
def _two_databases(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    monkeypatch.setattr(databases, "DATABASE_CONNECT_SECONDS", DEADLINE)  # long enough for a busy machine
    monkeypatch.setattr(databases, "DATABASES_SECONDS", DEADLINE)


def listed_ids(client: Client, address: str) -> list[int]:
    return [job.pk for job in client.get(address).context["cl"].result_list]


def test_an_address_without_a_database_shows_the_one_of_the_setting(operator: Client, settings: Any) -> None:
    job_in_default, job_in_other = make_job(pk=1), make_job(using="other", pk=2)
    assert listed_ids(operator, LIST) == [job_in_default.pk]
    assert listed_ids(operator, with_database(LIST, "other")) == [job_in_other.pk]
    settings.SKIPQUEUE = {"DATABASES": ("default", "other"), "DATABASE": "other"}
    assert listed_ids(operator, LIST) == [job_in_other.pk]
    assert listed_ids(operator, with_database(LIST, "default")) == [job_in_default.pk]


def test_the_database_menu_marks_the_shown_database(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    html = operator.get(with_database(f"{LIST}?status=failed", "other")).text
    assert Page(html, LIST).switch == {alias: with_database(LIST, alias) for alias in ("default", "other")}
    assert html.count('aria-current="true">other (retiring)</a>') == 1


def test_on_the_page_of_a_job_the_database_menu_links_to_the_lists_of_jobs(operator: Client) -> None:
    job = make_job()
    switch = Page(operator.get(page("change", job.pk)).text, LIST).switch
    assert switch == {alias: with_database(LIST, alias) for alias in ("default", "other")}


@pytest.mark.parametrize("address", [LIST, DASHBOARD, page("change", 1), page("retry", 1)])
def test_a_database_that_is_not_served_is_not_found(operator: Client, settings: Any, address: str) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "DATABASE": "default", "RETIRING": ("other",)}
    make_job("failed", pk=1)
    for alias in ("third", "", "other%00"):
        response = operator.post(f"{address}?database={alias}")
        assert response.status_code == 404
        assert set(Page(response.text, address).switch) == {"default", "other"}
    assert Job.objects.get(pk=1).status == "failed"


@pytest.mark.parametrize("alias", ["third", "other"])
def test_a_visitor_who_is_not_logged_in_learns_of_no_database(client: Client, alias: str) -> None:
    response = client.get(with_database(LIST, alias))
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/admin/login/?next=")
    response_by_handle = client.get(f"{LIST}{alias}:1/change/")
    assert (response_by_handle.status_code, response_by_handle.headers["Location"]) == (
        302,
        f"/admin/login/?next={LIST}{alias}%3A1/change/",
    )


def test_after_a_request_the_database_of_the_setting_is_used_again(operator: Client) -> None:
    operator.get(with_database(LIST, "other"))
    assert queue_settings.database == "default"


def test_a_database_that_cannot_be_reached_has_a_page_that_says_so(operator: Client, unreachable: str) -> None:
    make_job()
    for address in (LIST, DASHBOARD, page("change", 1)):
        response = operator.get(with_database(address, unreachable))
        assert response.status_code == 503
        assert "The database other cannot be reached" in response.text
        assert set(Page(response.text, address).switch) == {"default", "other"}
    assert operator.get(LIST).status_code == 200
    assert operator.get(with_database(f"{LIST}doctor/", unreachable)).status_code == 200


def test_a_database_that_goes_away_during_a_request_has_a_page_that_says_so(
    operator: Client, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def lose(*args: Any) -> None:
        request.getfixturevalue("unreachable")
        connections["other"].ensure_connection()

    monkeypatch.setattr(JobAdmin, "get_queryset", lose)
    response = operator.get(with_database(LIST, "other"))
    assert response.status_code == 503
    assert "The database other cannot be reached" in response.text


def database_table(client: Client) -> dict[str, list[str]]:
    """The cells of each line of the table of databases on the dashboard."""
    _, _, from_table_on = client.get(DASHBOARD).text.partition('aria-labelledby="skipqueue-databases"')
    table, _, _ = from_table_on.partition("</table>")
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    texts = [[without_tags(cell) for cell in (name, *cells.split("</td>"))] for name, cells in rows]
    return {name: [cell for cell in cells if cell] for name, *cells in texts}


def without_tags(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html).strip()


def test_the_dashboard_has_the_job_counts_of_all_databases(operator: Client, settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default",), "RETIRING": ("other",)}
    make_job()
    make_job("failed")
    for status in ("queued", "queued", "running", "failed"):
        make_job(status, using="other")
    make_worker(using="other", pk="w")
    table = database_table(operator)
    assert {name: [*cells[:3], *cells[4:]] for name, cells in table.items()} == {
        "default": ["1", "0", "1", "0", "1"],
        "other retiring": ["2", "1", "1", "1", "0"],
        "all": ["3", "1", "2", "1", "1"],
    }


def test_the_box_names_the_other_databases_that_have_problems(operator: Client, settings: Any) -> None:
    make_worker()
    make_worker(using="other")
    assert "skipqueue-banner" not in operator.get(LIST).text
    notices_cache.clear()
    make_job("running", using="other", locked_by="gone", locked_at=timedelta(minutes=-12))
    for address in (LIST, DASHBOARD, "/admin/"):
        html = operator.get(address).text
        assert Page(html, address).box == {"other": with_database(DASHBOARD, "other")}
        assert '<div class="skipqueue-banner" data-status="critical"' in html
        assert "<strong>default: All is well.</strong>" in html
        assert ">other: 1 problem</a>" in html
    html_of_other = operator.get(with_database(LIST, "other")).text
    assert Page(html_of_other, LIST).box == {}
    assert "<strong>1 problem</strong>" in html_of_other
    settings.SKIPQUEUE = {}
    assert "skipqueue-banner" not in operator.get(LIST).text


def test_the_box_names_a_database_that_cannot_be_reached(operator: Client, unreachable: str) -> None:
    make_worker()
    assert Page(operator.get(LIST).text, LIST).box == {unreachable: with_database(DASHBOARD, unreachable)}


def test_a_database_that_cannot_be_reached_has_a_line_on_the_dashboard(operator: Client, unreachable: str) -> None:
    make_job()
    table = database_table(operator)
    assert table[unreachable] == ["cannot be reached"]
    assert (table["default"][0], table["all"][0]) == ("1", "1"), "the queued jobs"


@pytest.mark.parametrize("seconds", [databases.DATABASE_CONNECT_SECONDS, 1.5])
def test_the_dashboard_waits_for_databases_that_do_not_answer_at_the_same_time(
    operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "slow_1", "slow_2")}
    monkeypatch.setattr(databases, "DATABASE_CONNECT_SECONDS", seconds)
    seconds_taken = []

    def timed_read(*arguments: Any, **options: Any) -> Any:
        began = time.monotonic()
        numbers = read_at_once(*arguments, **options)
        seconds_taken.append(time.monotonic() - began)
        return numbers

    monkeypatch.setattr(databases, "read_at_once", timed_read)  # on a busy machine, the rest of the page may be slow
    make_job()
    proxy = Proxy()
    proxy.stall()
    with reached_at("slow_1", proxy.settings), reached_at("slow_2", proxy.settings):
        table = database_table(operator)
        proxy.close()
    assert table["slow_1"] == table["slow_2"] == ["cannot be reached"]
    assert (table["default"][0], table["all"][0]) == ("1", "1"), "the queued jobs"
    assert len(seconds_taken) == 1
    assert seconds_taken[0] < 2.9, "one after the other, the two slow databases would take three seconds"


def test_the_dashboard_leaves_no_connection_to_another_database_open(operator: Client) -> None:
    pids_before = session_pids("other") | {backend_pid(Store("other"))}  # other tests may have left sessions
    database_table(operator)
    wait_until(lambda: session_pids("other") <= pids_before, "its session is gone")


def session_pids(alias: str) -> set[int]:
    """The process ids of the sessions in this database."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_the_page_of_a_job_shows_its_handle(operator: Client, settings: Any) -> None:
    job = make_job(using="other")
    fact = "<dt>Handle</dt><dd>"
    assert f"{fact}other:{job.pk}</dd>" in operator.get(with_database(page("change", job.pk), "other")).text
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert fact not in operator.get(page("change", job.pk)).text


@pytest.mark.parametrize("shown", ["default", "other"])
def test_a_search_for_a_handle_opens_the_page_of_the_job(operator: Client, shown: str) -> None:
    response = operator.get(with_database(f"{LIST}?q=other:42", shown))
    assert response.headers["Location"] == with_database(page("change", 42), "other")
    for words in ("third:42", "42", f"other:{2**63}"):
        assert operator.get(with_database(f"{LIST}?q={words}", shown)).status_code == 200

"""A filter without an index searches only a part of the job list at a time, which is called a window."""

import re
import shlex
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import localtime

from django_skipqueue.console import counts, job_states
from django_skipqueue.console import search as window
from django_skipqueue.console.search import cause_text
from django_skipqueue.models import Job

from ....app.failing import UNAVAILABLE, make_failing
from ....app.rows import make_job
from ...cli.running import skipqueue
from ..conftest import LIST, listed

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestWindow:
    @pytest.fixture(autouse=True)
    def _small_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)

    @pytest.mark.parametrize(
        "address", ["?task=a", "?queue=mail", "?q=a", "?task=a&time=hour", "?status=completed&queue=mail"]
    )
    def test_a_filter_without_an_index_searches_the_first_jobs_and_says_so(
        self, operator: Client, address: str
    ) -> None:
        jobs = [make_job("completed", task="a", queue_name="mail") for _ in range(2)]
        Job.objects.filter(pk=jobs[0].pk).update(finished_at=F("finished_at") - timedelta(hours=1))
        assert set(listed(operator, address)) == {job.pk for job in jobs}
        for _ in range(3):
            make_job("completed", task="b", queue_name="b")
        assert jobs[0].pk not in listed(operator, address)
        text = " ".join(operator.get(LIST + address).text.split())
        assert "nly the first 2 jobs were searched" in text or "No match among the first 2 jobs" in text

    @pytest.mark.parametrize("address", ["", "?status=failed", "?status=failed&queue=mail", "?status=failed&time=hour"])
    def test_a_filter_with_an_index_finds_jobs_beyond_the_first_window(self, operator: Client, address: str) -> None:
        jobs = [make_job("failed", queue_name="mail") for _ in range(5)]
        assert listed(operator, address) == [job.pk for job in reversed(jobs)]
        assert "the first 2 jobs" not in operator.get(LIST + address).text

    def test_a_search_finds_the_job_with_an_id(self, operator: Client) -> None:
        oldest_job, *_ = [make_job() for _ in range(5)]  # not in the first window
        job_id = oldest_job.pk
        assert listed(operator, f"?q={job_id}") == listed(operator, f"?q=%23{job_id}") == [job_id]

    @pytest.mark.parametrize("address", ["?task=a", "?q=a"])
    def test_a_window_is_searched_once(self, operator: Client, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 1_000)
        jobs = [make_job(task="a") for _ in range(120)]
        for page_number, newest in ((1, 119), (2, 69), (3, 19)):
            with CaptureQueriesContext(connection) as queries:
                ids_on_page = listed(operator, f"{address}&p={page_number}")
            assert ids_on_page == [job.pk for job in reversed(jobs)][119 - newest : 169 - newest]  # a page has 50 jobs
            searches = [query["sql"] for query in queries if "LIMIT 10001" in query["sql"]]
            assert len([sql for sql in searches if " = 'a'" in sql or "LIKE" in sql]) == 1

    def test_the_job_with_the_number_that_was_searched_is_on_the_first_page(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 60)
        job = make_job()
        newer_jobs = [make_job(kwargs={"n": job.pk}) for _ in range(60)]
        assert listed(operator, f"?q={job.pk}") == [*(newer_job.pk for newer_job in reversed(newer_jobs[-49:])), job.pk]
        assert listed(operator, f"?q={job.pk}&status=failed") == []

    def test_a_link_searches_the_next_window(self, operator: Client) -> None:
        jobs = [make_job(task=f"a{number}") for number in range(5)]
        for window_number, expected_ids in ((1, []), (2, []), (3, [jobs[0].pk]), (4, []), (99, [])):
            assert listed(operator, f"?q=a0&look={window_number}") == expected_ids
        assert "No match among jobs 3 to 4" in " ".join(operator.get(f"{LIST}?q=a0&look=2").text.split())
        assert '<a href="?look=2&amp;q=a0">further down</a>' in operator.get(f"{LIST}?q=a0").text
        assert '<a href="?q=a0&amp;status=failed">failed</a>' in operator.get(f"{LIST}?q=a0").text
        assert "further down" not in operator.get(f"{LIST}?q=a0&look=3").text

    @pytest.mark.parametrize("look", ["0", "-1", "x", "²", "9" * 4_400])
    def test_an_invalid_window_in_the_address_searches_the_first_window(self, operator: Client, look: str) -> None:
        newest_job = [make_job(task="a") for _ in range(3)][-1]
        assert newest_job.pk in listed(operator, f"?q=a&look={look}")


class TestTheEndOfTheSearch:
    """Here, pages can search only two windows of two jobs each, and the list is longer."""

    @pytest.fixture(autouse=True)
    def _small_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        monkeypatch.setattr(window, "MOST_WINDOWS", 2)
        for number in range(7):
            make_job("failed", task=f"a{number}", kwargs={"n": 1})

    @pytest.mark.parametrize("look", ["2", "3", "20", "21", "99", "1000"])
    def test_a_window_beyond_the_last_one_shows_the_last_window(self, operator: Client, look: str) -> None:
        assert [job.task for job in operator.get(f"{LIST}?q=n=1&look={look}").context["cl"].result_list] == ["a4", "a3"]
        text = " ".join(operator.get(f"{LIST}?q=nosuch&look={look}").text.split())
        assert "No match among jobs 3 to 4" in text
        assert "further down</a>" not in text

    def test_the_page_names_the_number_of_jobs_left_and_a_command_that_searches_them(self, operator: Client) -> None:
        text = " ".join(operator.get(f"{LIST}?status=failed&q=order.id='x y'&queue=default&time=day").text.split())
        assert "Not searched: 5 jobs further down." in text
        command = re.search("Not searched: .*?<code>(.*?)</code>", text)
        assert command
        words = shlex.split(unescape(command[1]))
        assert words[:4] == ["python", "manage.py", "skipqueue", "list"]
        assert words[4:] == ["--status=failed", "--queue=default", "--since=24h", "--search=order.id='x y'", "--all"]

    @pytest.mark.django_db(transaction=True)
    def test_the_command_that_the_page_names_finds_the_job(self, operator: Client) -> None:
        first, before = (localtime() + timedelta(days=days) for days in (-1, 1))
        period = f"first={first:%Y-%m-%dT%H:%M}&before={before:%Y-%m-%dT%H:%M}"
        command = operator.get(f"{LIST}?q=a0&{period}").context["cl"].command
        assert "a0" in skipqueue(*shlex.split(command)[3:]).out

    @pytest.mark.parametrize(
        "address", ["?q=x&batch=1", "?q=x&status=running&runs=1m", "?q=x&time=day&first=2026-01-01"]
    )
    def test_no_command_is_named_if_the_command_line_has_no_option_for_a_filter(
        self, operator: Client, address: str
    ) -> None:
        assert operator.get(LIST + address).context["cl"].command == ""

    def test_many_jobs_left_are_estimated(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 2)
        monkeypatch.setattr(window, "expected", lambda jobs: 10_000_004)
        assert "Not searched: about 10,000,000 jobs further down." in operator.get(f"{LIST}?q=a0").text

    def test_other_lists_are_offered_only_for_a_list_of_one_status(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 100)
        assert "Search:" not in operator.get(f"{LIST}?q=nosuch").text
        assert "Search:" in operator.get(f"{LIST}?q=nosuch&status=queued").text

    def test_a_list_that_was_searched_to_its_end_has_no_jobs_left(self, operator: Client) -> None:
        assert "Not searched" not in operator.get(f"{LIST}?q=a0&status=queued").text


class TestAPeriod:
    def test_an_index_finds_finished_and_running_jobs_of_a_period(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A search begins at the period, however far down the list the period is."""
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        now = localtime()
        jobs_by_status: dict[str, list[Job]] = {}
        for status, column in (("completed", "finished_at"), ("running", "locked_at"), ("failed", "finished_at")):
            times: list[dict[str, Any]] = [{column: now - timedelta(hours=hours)} for hours in range(10)]
            jobs_by_status[status] = [make_job(status, task="a", **time) for time in times]
        first, before = (f"{now - timedelta(hours=hours, minutes=30):%Y-%m-%dT%H:%M}" for hours in (8, 6))
        for status, jobs in jobs_by_status.items():
            address = f"?status={status}&first={first}&before={before}"
            for search in ("", "&q=a"):
                assert set(listed(operator, address + search)) == {jobs[7].pk, jobs[8].pk}, (status, search)
            assert "Not searched" not in operator.get(f"{LIST}{address}&q=nosuch").text
            assert tab_count(operator, address, status) == "2"

    @pytest.mark.parametrize("status", ["", "queued", "blocked"])
    def test_the_period_of_waiting_jobs_is_about_when_they_were_enqueued(self, operator: Client, status: str) -> None:
        now = localtime()
        jobs = [make_job(status or "queued", enqueued_at=now - timedelta(hours=hours)) for hours in (3, 2, 1, 0)]
        first, before = (f"{now - timedelta(hours=hours, minutes=30):%Y-%m-%dT%H:%M}" for hours in (2, 0))
        address = f"?status={status}&first={first}&before={before}"
        for search in ("", "&q=noop"):
            assert set(listed(operator, address + search)) == {jobs[1].pk, jobs[2].pk}
        assert "Not searched" not in operator.get(f"{LIST}{address}&q=nosuch").text
        assert jobs[0].pk in listed(operator, f"?status={status}&before={before}")

    @pytest.mark.parametrize("status", ["queued", "scheduled"])
    def test_a_long_period_of_waiting_jobs_is_searched_in_the_order_of_the_list(
        self, operator: Client, status: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_states, "FEW_IDS", 2)
        monkeypatch.setattr(window, "WINDOW_SIZE", 3)
        for hours in range(5, 0, -1):
            make_job(status, enqueued_at=timedelta(hours=-hours))
        text = " ".join(operator.get(f"{LIST}?status={status}&time=day").text.split())
        assert "Only the first 3 jobs were searched" in text
        assert len(listed(operator, f"?status={status}&time=day")) == 3

    def test_the_form_of_the_period_keeps_the_other_filters(self, operator: Client) -> None:
        text = operator.get(LIST, {"status": "failed", "q": "abc", "first": "2026-01-01T00:00"}).text
        form = text.partition('class="skipqueue-period"')[2].partition("</form>")[0]
        assert '<input type="hidden" name="status" value="failed">' in form
        assert '<input type="hidden" name="q" value="abc">' in form
        assert form.count('name="first"') == 1
        assert 'value="2026-01-01T00:00"' in form

    @pytest.mark.parametrize("typed", ["", "soon", "2026-99-99T00:00", "0001-01-01T00:00", "9999-12-31T23:59"])
    def test_an_invalid_time_of_a_period_is_no_error(self, operator: Client, typed: str) -> None:
        make_job()
        assert operator.get(LIST, {"before": typed, "first": typed}).status_code == 200

    def test_a_period_can_be_combined_with_a_cause(self, operator: Client) -> None:
        old_job, new_job = (make_failing(UNAVAILABLE, finished_at=timedelta(hours=-hours)) for hours in (5, 1))
        cause = {"task": UNAVAILABLE.task, "cause": cause_text(UNAVAILABLE), "status": "failed"}
        before = f"{localtime() - timedelta(hours=3):%Y-%m-%dT%H:%M}"
        listed_jobs = operator.get(LIST, cause | {"before": before}).context["cl"].result_list
        assert [job.pk for job in listed_jobs] == [old_job.pk]
        assert new_job.pk in listed(operator, "?" + urlencode(cause))


def tab_count(operator: Client, address: str, state: str) -> str:
    return next(str(tab.count) for tab in operator.get(LIST + address).context["cl"].tabs if tab.state == state)

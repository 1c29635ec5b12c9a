"""`window`: what no index finds is searched for in a part of the list."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_skipqueue.models import Job
from django_skipqueue.operators import window

from ...app.rows import make_job
from ..conftest import LIST, listed

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestWindow:
    @pytest.fixture(autouse=True)
    def _small_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)

    @pytest.mark.parametrize(
        "address", ["?task=a", "?queue=mail", "?q=a", "?time=hour", "?status=completed&queue=mail"]
    )
    def test_what_no_index_finds_is_searched_for_in_the_front_of_the_list_and_the_page_says_so(
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
    def test_what_an_index_finds_is_found_wherever_it_is(self, operator: Client, address: str) -> None:
        jobs = [make_job("failed", queue_name="mail") for _ in range(5)]
        assert listed(operator, address) == [job.pk for job in reversed(jobs)]
        assert "the first 2 jobs" not in operator.get(LIST + address).text

    def test_so_is_an_id(self, operator: Client) -> None:
        job, *_ = [make_job() for _ in range(5)]
        assert listed(operator, f"?q={job.pk}") == listed(operator, f"?q=%23{job.pk}") == [job.pk]

    @pytest.mark.parametrize("address", ["?task=a", "?q=a"])
    def test_a_window_is_searched_once(self, operator: Client, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 1_000)
        jobs = [make_job(task="a") for _ in range(120)]
        for page, first in ((1, 119), (2, 69), (3, 19)):
            with CaptureQueriesContext(connection) as queries:
                found = listed(operator, f"{address}&p={page}")
            assert found == [job.pk for job in reversed(jobs)][119 - first : 169 - first]
            searches = [query["sql"] for query in queries if "LIMIT 10001" in query["sql"]]
            assert len([sql for sql in searches if " = 'a'" in sql or "LIKE" in sql]) == 1

    def test_the_job_with_the_number_that_was_searched_is_on_the_first_page(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 60)
        job = make_job()
        newer = [make_job(kwargs={"n": job.pk}) for _ in range(60)]
        assert listed(operator, f"?q={job.pk}") == [*(each.pk for each in reversed(newer[-49:])), job.pk]
        assert listed(operator, f"?q={job.pk}&status=failed") == []

    def test_one_can_look_further_down(self, operator: Client) -> None:
        jobs = [make_job(task=f"a{number}") for number in range(5)]
        for look, found in ((1, []), (2, []), (3, [jobs[0].pk]), (4, []), (99, [])):
            assert listed(operator, f"?q=a0&look={look}") == found
        assert "No match among jobs 3 to 4" in " ".join(operator.get(f"{LIST}?q=a0&look=2").text.split())
        assert '<a href="?look=2&amp;q=a0">further down</a>' in operator.get(f"{LIST}?q=a0").text
        assert '<a href="?q=a0&amp;status=failed">failed</a>' in operator.get(f"{LIST}?q=a0").text
        assert "further down" not in operator.get(f"{LIST}?q=a0&look=3").text

    @pytest.mark.parametrize("look", ["0", "-1", "x", "²", "9" * 4_400])
    def test_there_is_no_other_part_to_look_at(self, operator: Client, look: str) -> None:
        job, *_ = [make_job(task="a") for _ in range(3)][-1:]
        assert job.pk in listed(operator, f"?q=a&look={look}")

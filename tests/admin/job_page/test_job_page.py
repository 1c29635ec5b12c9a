"""`job_page`: the page of one job."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.models import Job

from ...app.rows import STATUSES, make_job
from ..conftest import LIST, page

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestThePage:
    def test_it_shows_everything_about_a_job(self, operator: Client) -> None:
        job = make_job(
            "completed", task="tests.app.jobs.add", args=[1], kwargs={"b": {"c": "é"}}, result={"sum": [3]}, priority=7,
            queue_name="mail", unique_key="key-1", metadata={"m": 1}, timeout=90,
            errors=[{"attempt": 1, "exception": "x.Y", "message": "no", "traceback": "Traceback …", "worker": "w/1"}],
        )  # fmt: skip
        text = operator.get(page("change", job.pk)).text
        for expected in (
            "<dt>a</dt>", "<dt>b</dt>", "&quot;c&quot;: &quot;é&quot;", "&quot;sum&quot;: [", "key-1", "mail",
            "x.Y", "Traceback …", "w/1", "&quot;m&quot;: 1", "completed", "1 min 30 s",
        ):  # fmt: skip
            assert expected in text, expected

    @pytest.mark.parametrize("status", STATUSES)
    def test_nothing_in_it_is_markup(self, operator: Client, status: str) -> None:
        job = make_job(
            status, task=HOSTILE, queue_name=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}, last_error=HOSTILE,
            result=HOSTILE, metadata={HOSTILE: HOSTILE}, unique_key=HOSTILE, locked_by=HOSTILE,
            errors=[dict.fromkeys(("worker", "exception", "message", "traceback", "at"), HOSTILE)],
        )  # fmt: skip
        for name in ("change", "delete", "history"):
            text = operator.get(page(name, job.pk)).text
            assert "<script>alert" not in text
            assert 'onload="alert' not in text

    @pytest.mark.parametrize("status", STATUSES)
    def test_its_queries_do_not_grow_with_the_attempts(
        self, operator: Client, status: str, django_assert_max_num_queries: Any
    ) -> None:
        job = make_job(status, errors=[{"attempt": number, "worker": "w"} for number in range(10)])
        with django_assert_max_num_queries(11):
            assert operator.get(page("change", job.pk)).status_code == 200

    @pytest.mark.parametrize("job_id", ["4711", "x", "9" * 40, "9" * 4_400, "-1"])
    def test_an_id_of_no_job_leads_to_the_list(self, operator: Client, job_id: str) -> None:
        response = operator.get(f"{LIST}{job_id}/change/", follow=True)
        assert response.redirect_chain[-1][0] == LIST

    def test_attempts_that_are_not_kept_are_counted(self, operator: Client) -> None:
        job = make_job("failed", attempts=12, errors=[{"attempt": number} for number in range(3, 13)])
        assert "2 earlier attempts are not kept." in operator.get(page("change", job.pk)).text

    def test_megabytes_of_arguments_are_cut_in_the_middle(self, operator: Client) -> None:
        job = make_job(args=["x" * 1_000_000])
        text = operator.get(page("change", job.pk)).text
        assert len(text) < 60_000
        assert "characters left out" in text

    def test_the_question_before_deleting_one_job_goes_to_the_lists_action(self, operator: Client) -> None:
        job = make_job("failed")
        response = operator.get(page("delete", job.pk))
        assert response.context["title"] == "Delete 1 job?"
        assert f'action="{LIST}"' in response.text
        data = {"action": "delete_selected", "_selected_action": job.pk, "confirmed": "yes"}
        operator.post(LIST, data)
        assert not Job.objects.exists()

    def test_it_is_for_those_who_may_delete(self, log_in: Callable[..., Client]) -> None:
        job = make_job("failed")
        assert log_in("view_job").get(page("delete", job.pk)).status_code == 403

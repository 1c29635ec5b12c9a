"""The page of one job."""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from django.test import Client
from django.utils.timezone import now

from django_skipqueue.console.admin.jobs.page import JobPage
from django_skipqueue.models import Job

from ....app.rows import STATUSES, make_job
from ....harness.table import Case
from ..conftest import LIST, page
from ..scene import iso_seconds_ago

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestThePage:
    def test_the_page_shows_every_column_of_a_job(self, operator: Client) -> None:
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

    def test_the_pages_of_a_job_escape_html(self, operator: Client, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(
                    status, task=HOSTILE, queue_name=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE},
                    last_error=HOSTILE, result=HOSTILE, metadata={HOSTILE: HOSTILE}, unique_key=HOSTILE,
                    locked_by=HOSTILE,
                    errors=[dict.fromkeys(("worker", "exception", "message", "traceback", "at"), HOSTILE)],
                )  # fmt: skip
                for name in ("change", "delete", "history"):
                    text = operator.get(page(name, job.pk)).text
                    assert "<script>alert" not in text
                    assert 'onload="alert' not in text

    @pytest.mark.parametrize("status", STATUSES)
    def test_the_number_of_queries_does_not_grow_with_the_attempts(
        self, operator: Client, status: str, django_assert_max_num_queries: Any
    ) -> None:
        job = make_job(status, errors=[{"attempt": number, "worker": "w"} for number in range(10)])
        operator.get(page("change", job.pk))  # fills the cache of the verdict
        with django_assert_max_num_queries(17):  # five of the queries set time limits
            assert operator.get(page("change", job.pk)).status_code == 200

    def test_an_id_that_no_job_has_leads_to_the_list(self, operator: Client, case: Case) -> None:
        cases: list[str] = ["4711", "x", "9" * 40, "9" * 4_400, "-1"]
        for job_id in cases:
            with case(job_id=job_id):
                response = operator.get(f"{LIST}{job_id}/change/", follow=True)
                assert response.redirect_chain[-1][0] == LIST

    def test_the_page_counts_attempts_that_are_no_longer_stored(self, operator: Client) -> None:
        job = make_job("failed", attempts=12, errors=[{"attempt": number} for number in range(3, 13)])
        assert "2 earlier attempts are no longer stored." in operator.get(page("change", job.pk)).text

    def test_megabytes_of_arguments_are_cut_in_the_middle(self, operator: Client) -> None:
        job = make_job(args=["x" * 1_000_000])
        text = operator.get(page("change", job.pk)).text
        assert len(text) < 60_000
        assert "characters left out" in text

    def test_the_delete_page_of_a_job_posts_to_the_action_of_the_list(self, operator: Client) -> None:
        job = make_job("failed")
        response = operator.get(page("delete", job.pk))
        assert response.context["title"] == "Delete 1 job?"
        assert f'action="{LIST}"' in response.text
        data = {"action": "delete_selected", "_selected_action": job.pk, "confirmed": "yes"}
        operator.post(LIST, data)
        assert not Job.objects.exists()

    def test_users_who_may_not_delete_jobs_have_no_delete_page(self, log_in: Callable[..., Client]) -> None:
        job = make_job("failed")
        assert log_in("view_job").get(page("delete", job.pk)).status_code == 403


def attempt_notes(**more_columns: Any) -> dict[str, Any]:
    """Return columns for a job in its second attempt, with progress and log lines."""
    return {
        "lease": 3,
        "progress": {"lease": 3, "value": 0.4, "text": "40 of 100 <b> hunter2!", "at": iso_seconds_ago(5)},
        "kwargs": {"password": "hunter2!"},
        "logs": [
            {"lease": 1, "attempt": 1, "started": iso_seconds_ago(90), "lines": [[0, "INFO", "shop", "of the first"]]},
            {
                "lease": 3, "attempt": 2, "started": iso_seconds_ago(20), "dropped": 7,
                "lines": [[1500, "WARNING", "shop", "it is hunter2!"], [1600, "INFO", "", "<script>alert(1)"]],
            },
        ],
    } | more_columns  # fmt: skip


class TestNotes:
    def test_a_running_job_shows_its_progress(self, operator: Client) -> None:
        text = operator.get(page("change", make_job("running", **attempt_notes()).pk) + "?fragment=1").text
        assert '<progress class="skipqueue-progress" max="1" value="0.4" aria-labelledby="skipqueue-progress">' in text
        assert '<h2 id="skipqueue-progress">40 % · 40 of 100 &lt;b&gt; ••••••</h2>' in text
        assert re.search(r"Updated 5\.\d s ago", text)

    def test_the_value_of_the_progress_bar_has_a_decimal_point_in_every_language(
        self, operator: Client, settings: Any
    ) -> None:
        settings.LANGUAGE_CODE = "de"
        text = operator.get(
            page("change", make_job("running", **attempt_notes()).pk), headers={"accept-language": "de"}
        ).text
        assert 'value="0.4"' in text

    def test_the_progress_of_another_attempt_is_not_shown(self, operator: Client, case: Case) -> None:
        cases: list[tuple[str, int]] = [("queued", 3), ("running", 4), ("completed", 4)]
        for status, lease in cases:
            with case(status=status, lease=lease):
                text = operator.get(page("change", make_job(status, **attempt_notes(lease=lease)).pk)).text
                assert "<progress" not in text

    def test_a_failed_job_shows_how_far_it_came(self, operator: Client) -> None:
        assert "<progress" in operator.get(page("change", make_job("failed", **attempt_notes(lease=4)).pk)).text

    def test_each_attempt_has_its_log(self, operator: Client) -> None:
        errors = [{"attempt": 1, "message": "no", "exception": "ValueError", "at": iso_seconds_ago(80)}]
        job = make_job("running", attempts=2, errors=errors, **attempt_notes())
        second, first = JobPage(job, now()).attempts
        assert first.log is not None
        assert second.log is not None
        assert [line.message for line in first.log.lines] == ["of the first"]
        assert [line.message for line in second.log.lines] == ["it is ••••••", "<script>alert(1)"]
        text = operator.get(page("change", job.pk)).text
        assert "&lt;script&gt;alert(1)" in text
        assert "7 earlier lines were not kept." in text
        assert '<li data-level="WARNING">' in text
        assert text.index("Log of attempt 2: 2 lines") < text.index("Log of attempt 1: 1 line")

    def test_the_log_of_an_attempt_without_an_error_is_not_lost(self, operator: Client) -> None:
        """An attempt has no error if the job was released or has snoozed."""
        job = make_job("running", attempts=2, **attempt_notes())
        assert [log.number for log in JobPage(job, now()).other_logs] == [1]
        assert "of the first" in operator.get(page("change", job.pk)).text

    def test_the_log_of_an_attempt_after_a_manual_retry_has_the_number_of_the_attempt(self) -> None:
        retry = {"verb": "retry", "at": iso_seconds_ago(60), "attempts": 1, "by": "", "reason": ""}
        first, second = attempt_notes()["logs"]
        job = make_job(
            "running", attempts=1, operations=[retry], **attempt_notes(logs=[first, second | {"attempt": 1}])
        )
        (attempt,) = JobPage(job, now()).attempts
        assert attempt.log is not None
        assert (attempt.number, attempt.log.number, attempt.log.dropped) == (2, 2, 7)

    def test_a_job_with_invalid_logs_and_progress_has_a_page(self, operator: Client, case: Case) -> None:
        cases: list[Any] = [3, "x", {}, [3], [{"lines": [["a", 1, None, {}]]}], {"lease": 1, "value": "a"}]
        for invalid_value, status in product(cases, STATUSES):
            with case(logs=invalid_value, status=status):
                job = make_job(status, logs=invalid_value, progress=invalid_value)
                assert operator.get(page("change", job.pk)).status_code == 200
                assert operator.get(LIST).status_code == 200

    def test_the_list_shows_the_progress_of_running_jobs(self, operator: Client) -> None:
        make_job("running", **attempt_notes())
        text = operator.get(f"{LIST}?status=running").text
        assert '<progress class="skipqueue-progress" max="1" value="0.4000" aria-label="Progress"></progress>' in text
        assert "40 % · 40 of 100 &lt;b&gt;" in text

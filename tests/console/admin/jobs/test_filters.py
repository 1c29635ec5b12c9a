"""The filters of the job list: by queue, by task and by time."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.console.admin.jobs import filters

from ....app.rows import make_job
from ..conftest import LIST, listed

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestFilters:
    def test_jobs_are_filtered_by_queue_and_by_task(self, operator: Client) -> None:
        mail_job = make_job("failed", queue_name="mail", task="a")
        other_job = make_job("failed", queue_name="default", task="b")
        assert listed(operator, "?queue=mail") == listed(operator, "?status=failed&queue=mail") == [mail_job.pk]
        assert listed(operator, "?task=b") == [other_job.pk]
        assert listed(operator, "?queue=nobody") == []

    def test_tasks_of_the_package_are_not_offered_unless_they_have_jobs(self, operator: Client) -> None:
        assert "apply_to_all" not in operator.get(LIST).text
        make_job("failed", task="django_skipqueue.apply_to_all")
        assert "apply_to_all" in operator.get(LIST).text.partition("By task")[2]

    def test_the_filter_by_many_tasks_is_a_text_field_with_suggestions(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = make_job(task="shop.a")
        make_job(task="shop.b")
        monkeypatch.setattr(filters, "MOST_LINKS", 1_000)
        assert 'list="skipqueue-tasks"' not in operator.get(LIST).text
        monkeypatch.setattr(filters, "MOST_LINKS", 1)
        text = operator.get(f"{LIST}?status=queued&task=shop.a&look=2").text
        form = text.partition("By task")[2].partition("</form>")[0]
        assert '<option value="shop.b"></option>' in form
        assert 'name="task" list="skipqueue-tasks" value="shop.a"' in form
        assert '<input type="hidden" name="status" value="queued">' in form
        assert "look" not in form
        assert listed(operator, "?status=queued&task=shop.a") == [job.pk]

    @pytest.mark.parametrize(
        ("preset", "expected_count"), [("hour", 1), ("day", 2), ("week", 3), ("month", 4), ("never", 5)]
    )
    @pytest.mark.parametrize(
        ("address", "status", "column"),
        [
            ("", "queued", "enqueued_at"),
            ("&status=scheduled", "scheduled", "enqueued_at"),
            ("&status=running", "running", "locked_at"),
            ("&status=failed", "failed", "finished_at"),
        ],
    )
    def test_jobs_are_filtered_by_the_time_of_their_status(
        self, operator: Client, preset: str, expected_count: int, address: str, status: str, column: str
    ) -> None:
        for age in (
            timedelta(days=50),
            timedelta(days=25),
            timedelta(days=5),
            timedelta(hours=5),
            timedelta(minutes=5),
        ):
            times: dict[str, Any] = {column: -age}
            make_job(status, **times)
        assert len(listed(operator, f"?time={preset}{address}")) == expected_count

    @pytest.mark.parametrize(("preset", "expected_count"), [("1m", 4), ("10m", 3), ("1h", 2), ("6h", 1), ("never", 5)])
    def test_running_jobs_are_filtered_by_their_running_time(
        self, operator: Client, preset: str, expected_count: int
    ) -> None:
        for minutes in (0, 2, 20, 120, 1200):
            make_job("running", locked_at=timedelta(minutes=-minutes))
        address = f"?status=running&runs={preset}"
        assert len(listed(operator, address)) == expected_count
        (tab,) = [tab for tab in operator.get(LIST + address).context["cl"].tabs if tab.state == "running"]
        assert str(tab.count) == str(expected_count)

    def test_only_the_list_of_running_jobs_has_the_filter_by_running_time(self, operator: Client) -> None:
        make_job()
        assert len(listed(operator, "?status=queued&runs=6h")) == len(listed(operator, "?runs=6h")) == 1
        assert "Longer than" not in operator.get(f"{LIST}?status=queued").text
        assert "Longer than 6 hours" in operator.get(f"{LIST}?status=running").text

    @pytest.mark.parametrize(
        "address",
        [
            "?queue=a%00b",
            "?task=%00",
            "?status=x",
            "?time=x",
            "?status=running&runs=x",
            "?p=x",
            "?p=999",
            "?status=&q=",
        ],
    )
    def test_an_invalid_filter_in_the_address_is_no_error(self, operator: Client, address: str) -> None:
        make_job()
        assert operator.get(LIST + address, follow=True).status_code == 200

"""The cells of the job list, which show times and arguments in a short form."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from django_skipqueue.console.admin.jobs import job_cells
from django_skipqueue.console.admin.ui import cells
from django_skipqueue.console.admin.ui.cells import CELL_LIMIT

from ....app.rows import make_job
from ..conftest import LIST, listed

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestWhen:
    @pytest.mark.parametrize(
        ("status", "fields", "text"),
        [
            ("completed", {"finished_at": timedelta(minutes=-3)}, "3 min ago"),
            ("queued", {"run_after": timedelta(seconds=-43)}, r"waiting [45]\d s"),
            ("scheduled", {"run_after": timedelta(hours=2, seconds=5)}, r"in (2 h|1 h 59 min)"),
            ("scheduled", {"run_after": timedelta(minutes=-2)}, "due 2 min ago"),
            ("running", {"started_at": timedelta(minutes=-12, seconds=-5)}, r"for 12 min \d+ s"),
        ],
    )
    def test_the_time_of_a_job_is_shown_as_a_distance(
        self, operator: Client, status: str, fields: dict[str, Any], text: str
    ) -> None:
        make_job(status, **fields)
        assert re.search(f">{text}</time>", operator.get(LIST).text)

    def test_the_longest_running_jobs_come_first_and_show_their_worker(self, operator: Client) -> None:
        short, long = (
            make_job("running", locked_at=timedelta(minutes=-age), locked_by="web-1/2:0123456789ab") for age in (1, 9)
        )
        assert listed(operator, "?status=running") == [long.pk, short.pk]
        assert ">web-1/2</a>" in operator.get(f"{LIST}?status=running").text

    @pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
    @pytest.mark.parametrize("moment", [datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)])
    def test_the_earliest_and_latest_times_break_no_page(
        self, operator: Client, settings: Any, zone: str, moment: datetime
    ) -> None:
        settings.TIME_ZONE = zone
        job = make_job("scheduled", run_after=moment)
        for address in ("", "?status=scheduled", f"{job.pk}/change/"):
            assert operator.get(LIST + address).status_code == 200


class TestArguments:
    @pytest.mark.parametrize(
        ("args", "kwargs", "text"),
        [
            ("[]", "{}", ""),
            ('[1, "a", null]', "{}", '1, "a", null'),
            ("[1]", '{"b": {"c": "é"}}', '1, b={"c": "é"}'),
            ("[]", '{"b": "xx', 'b="xx…"'),
            ("[1, 2", "{", '1, "…"'),
        ],
    )
    def test_arguments_are_shown_like_a_call(self, args: str, kwargs: str, text: str) -> None:
        assert cells.arguments("t", job_cells.called("t", args, kwargs)) == text

    def test_positional_arguments_are_shown_with_the_names_of_the_parameters(self) -> None:
        task = "tests.app.jobs.add"
        assert cells.arguments(task, job_cells.called(task, "[1]", '{"b": 2}')) == "a=1, b=2"

    def test_long_arguments_are_cut(self) -> None:
        text = cells.arguments("t", job_cells.called("t", f'["{"x" * 500}"]', "{}"))
        assert len(text) == CELL_LIMIT
        assert text.endswith("…")

    def test_the_full_arguments_are_the_title_of_the_cell(self, operator: Client) -> None:
        make_job(kwargs={"email": "grace@example.com", "payment_id": 42})
        title = 'title="email=&quot;grace@example.com&quot;, payment_id=42"'
        assert f'<span class="skipqueue-call" {title}>' in operator.get(LIST).text

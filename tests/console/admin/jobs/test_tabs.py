"""The tabs of the job list: one for all jobs and one for each state, with a count if an index can count the jobs."""

from datetime import timedelta

import pytest
from django.test import Client

from django_skipqueue.console import counts
from django_skipqueue.console import search as window
from django_skipqueue.console.counts import Count

from ....app.rows import STATUSES, make_job
from ..conftest import LIST, listed

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\" onload=\"alert(1)"


class TestTabs:
    def test_the_tabs_count_the_jobs_of_each_state(self, operator: Client) -> None:
        for status in STATUSES:
            make_job(status)
        make_job("failed")
        tabs = operator.get(LIST).context["cl"].tabs
        assert {tab.state: str(tab.count) for tab in tabs if tab.state} == {
            **dict.fromkeys(STATUSES, "1"),
            "retrying": "0",
            "failed": "2",
        }

    def test_the_tabs_keep_other_filters_and_have_a_count_only_if_an_index_can_count(self, operator: Client) -> None:
        make_job("failed", queue_name="mail")
        make_job("failed")
        make_job("completed", queue_name="mail")
        tabs = operator.get(f"{LIST}?queue=mail&status=queued&p=1").context["cl"].tabs
        assert [
            (tab.address, tab.count, tab.is_selected) for tab in tabs if tab.state in ("", "failed", "completed")
        ] == [
            ("?queue=mail", None, False),
            ("?queue=mail&status=completed", None, False),
            ("?queue=mail&status=failed", Count(1), False),
        ]
        assert [tab.state for tab in tabs if tab.is_selected] == ["queued"]

    def test_the_tabs_of_a_list_that_is_filtered_by_time_have_counts(self, operator: Client) -> None:
        for status in ("failed", "running"):
            make_job(status)
        make_job("failed", finished_at=timedelta(days=-2))
        tabs = operator.get(f"{LIST}?time=day").context["cl"].tabs
        counted = {tab.state: str(tab.count) for tab in tabs if tab.count}
        by_id = {"scheduled": "0", "retrying": "0", "queued": "0"}
        assert counted == {"running": "1", "completed": "0", "failed": "1", "discarded": "0", **by_id}

    @pytest.mark.parametrize("more", ["&task=a", "&q=a"])
    def test_with_a_filter_without_an_index_the_tabs_have_no_counts(self, operator: Client, more: str) -> None:
        assert not any(tab.count for tab in operator.get(f"{LIST}?{more}").context["cl"].tabs if tab.state)

    @pytest.mark.parametrize("more", ["task=aa", "q=aa"])
    def test_the_open_tab_has_the_number_of_jobs_found(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, more: str
    ) -> None:
        for task in ("bb", "aa", "bb", "aa", "aa"):
            make_job("failed", task=task)
        counted = []
        for size in (10, 3):
            monkeypatch.setattr(window, "WINDOW_SIZE", size)
            tabs = operator.get(f"{LIST}?status=failed&{more}").context["cl"].tabs
            counted += [str(tab.count) for tab in tabs if tab.count is not None]
        assert counted == ["3", "2+"]


class TestRetrying:
    """Jobs that wait for another attempt are not counted with jobs that wait for their first attempt."""

    def test_a_retrying_job_is_listed_in_its_tab_with_error_and_time_of_the_next_attempt(
        self, operator: Client
    ) -> None:
        tomorrow = make_job("scheduled", run_after=timedelta(days=1))
        snoozed = make_job("scheduled", run_after=timedelta(minutes=1), attempts=0)
        job = make_job("scheduled", run_after=timedelta(minutes=5, seconds=5), attempts=2, last_error="KeyError: 'psp'")
        assert listed(operator, "?status=retrying") == [job.pk]
        assert listed(operator, "?status=scheduled") == [snoozed.pk, tomorrow.pk]
        text = operator.get(f"{LIST}?status=retrying").text
        assert '<span class="skipqueue-badge" data-status="retrying">retrying</span>' in text
        assert "KeyError: &#x27;psp&#x27;" in text
        assert "next in 5 min" in text
        tabs = {tab.state: str(tab.count) for tab in operator.get(LIST).context["cl"].tabs}
        assert (tabs["retrying"], tabs["scheduled"]) == ("1", "2")

    def test_a_retrying_job_is_in_the_list_of_all_jobs(self, operator: Client) -> None:
        make_job("scheduled", attempts=1)
        assert 'data-status="retrying">retrying</span>' in operator.get(LIST).text

    def test_retrying_jobs_are_counted_among_the_scheduled_jobs_that_are_due_next(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        retrying = make_job("scheduled", run_after=timedelta(seconds=1), attempts=1)
        for _ in range(5):
            make_job("scheduled", run_after=timedelta(days=1))
        tabs = {tab.state: str(tab.count) for tab in operator.get(LIST).context["cl"].tabs}
        assert (tabs["retrying"], tabs["scheduled"]) == ("1+", "3+")
        assert listed(operator, "?status=retrying") == [retrying.pk]

    @pytest.mark.parametrize("attempts", [0, 1])
    def test_the_list_of_a_few_retrying_jobs_searches_the_first_scheduled_jobs(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, attempts: int
    ) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        monkeypatch.setattr(window, "WINDOW_SIZE", 4)
        for _ in range(6):
            make_job("scheduled", attempts=1 - attempts)
        make_job("scheduled", attempts=attempts, run_after=timedelta(days=1))
        state = "retrying" if attempts else "scheduled"
        response = operator.get(f"{LIST}?status={state}")
        assert listed(operator, f"?status={state}") == []
        assert "No match among the first 4 jobs" in " ".join(response.text.split())
        assert len(listed(operator, f"?status={'scheduled' if attempts else 'retrying'}")) == 6

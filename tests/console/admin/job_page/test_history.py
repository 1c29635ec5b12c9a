"""`history_of`, which lists each change of a job once, from the job's row and from Django's admin log."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_skipqueue.console.admin.jobs import history
from django_skipqueue.console.admin.jobs.history import history_of
from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store

from ....app.rows import make_job
from ..conftest import LIST, page

store = Store("default")

pytestmark = pytest.mark.django_db


def history_entries(job: Job) -> list[tuple[str, str, str]]:
    """Return the user, the text and the reason of each entry of the history, the newest first."""
    return [(entry.by, entry.text, entry.reason) for entry in history_of(Job.objects.get(pk=job.pk))]


def test_pressing_a_button_makes_one_entry_in_the_history(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    assert LogEntry.objects.filter(object_id=str(job.pk)).count() == 1
    assert history_entries(job) == [("ann", "retried", "")]


def test_an_action_on_all_matching_jobs_is_in_the_history_of_each(operator: Client) -> None:
    jobs = [make_job("failed") for _ in range(3)]
    data = {"action": "retry_selected", "_selected_action": [jobs[0].pk], "select_across": "1", "confirmed": "yes"}
    operator.post(f"{LIST}?status=failed", data | {"reason": "the bank is back"})
    for job in jobs:
        assert history_entries(job) == [("ann", "retried", "the bank is back")]
        text = operator.get(page("history", job.pk)).text
        assert "Retried" in text
        assert "the bank is back" in text


def test_running_a_job_again_is_in_the_history_of_both_jobs(operator: Client) -> None:
    job = make_job("completed", task="tests.app.jobs.noop")
    operator.post(page("run_again", job.pk), {"confirmed": "yes"})
    copy = Job.objects.exclude(pk=job.pk).get()
    assert history_entries(job) == [("ann", f"Run again as job {copy.pk}.", "")]
    assert history_entries(copy) == [("ann", f"run again: job {job.pk}", "")]


def test_the_history_has_changes_by_programs_and_by_other_users(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    store.discard([job.pk], by="bob", reason="no longer wanted")
    store.retry([job.pk])
    assert history_entries(job) == [
        ("", "retried", ""),
        ("bob", "discarded", "no longer wanted"),
        ("ann", "retried", ""),
    ]
    assert "a program" in operator.get(page("history", job.pk)).text


def test_two_equal_changes_make_two_entries(operator: Client) -> None:
    job = make_job("failed")
    for _ in range(2):
        operator.post(page("retry", job.pk))
        Job.objects.filter(pk=job.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    assert [text for _, text, _ in history_entries(job)] == ["retried", "retried"]


def test_an_entry_of_the_admin_log_with_another_time_is_another_change(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    entry = LogEntry.objects.get()
    LogEntry.objects.update(action_time=entry.action_time - timedelta(hours=1))
    assert [text for _, text, _ in history_entries(job)] == ["retried", "Retried."]


def test_only_the_newest_entries_of_the_admin_log_are_searched(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LOG_ENTRIES_SEARCHED", 3)
    copied_job, retried_job = make_job("failed"), make_job("failed")
    # Running a job again writes two entries: one for the job and one for its copy.
    operator.post(page("run_again", copied_job.pk), {"confirmed": "yes"})
    assert len(history_entries(copied_job)) == 1
    for _ in range(3):
        operator.post(page("retry", retried_job.pk))
        Job.objects.filter(pk=retried_job.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    assert history_entries(copied_job) == []
    assert [text for _, text, _ in history_entries(retried_job)] == ["retried"] * 3, (
        "the row of the job contains its operations"
    )


def test_a_job_without_changes_has_a_history_that_says_so(operator: Client) -> None:
    text = operator.get(page("history", make_job().pk)).text
    assert "Nobody has changed or copied this job." in text


def test_the_history_needs_few_queries(operator: Client, django_assert_max_num_queries: Any) -> None:
    job = make_job("failed")
    for _ in range(5):
        operator.post(page("retry", job.pk))
        Job.objects.filter(pk=job.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    operator.get(page("change", job.pk))  # fills the cache of the numbers in the navigation bar
    with django_assert_max_num_queries(10):  # three of the queries set time limits
        operator.get(page("history", job.pk))


def test_users_who_may_not_view_jobs_may_not_see_the_history(log_in: Callable[..., Client]) -> None:
    assert log_in("retry_job").get(page("history", make_job().pk)).status_code == 403

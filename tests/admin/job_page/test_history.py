"""`history`: who did what to a job, from its row and from Django's log, each thing once."""

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

from ...app.rows import make_job
from ..conftest import LIST, page

store = Store("default")

pytestmark = pytest.mark.django_db


def entries_of(job: Job) -> list[tuple[str, str, str]]:
    """By whom, what and why, the newest first."""
    return [(entry.by, entry.text, entry.reason) for entry in history_of(Job.objects.get(pk=job.pk))]


def test_a_button_stands_in_it_once(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    assert LogEntry.objects.filter(object_id=str(job.pk)).count() == 1
    assert entries_of(job) == [("ann", "retried", "")]


def test_an_action_on_all_matching_jobs_is_in_the_history_of_each(operator: Client) -> None:
    jobs = [make_job("failed") for _ in range(3)]
    data = {"action": "retry_selected", "_selected_action": [jobs[0].pk], "select_across": "1", "confirmed": "yes"}
    operator.post(f"{LIST}?status=failed", data | {"reason": "the bank is back"})
    for job in jobs:
        assert entries_of(job) == [("ann", "retried", "the bank is back")]
        text = operator.get(page("history", job.pk)).text
        assert "Retried" in text
        assert "the bank is back" in text


def test_a_copy_stands_in_it_and_its_own_says_of_which_job_it_is_one(operator: Client) -> None:
    job = make_job("completed", task="tests.app.jobs.noop")
    operator.post(page("run_again", job.pk), {"confirmed": "yes"})
    copy = Job.objects.exclude(pk=job.pk).get()
    assert entries_of(job) == [("ann", f"Run again as job {copy.pk}.", "")]
    assert entries_of(copy) == [("ann", f"run again: job {job.pk}", "")]


def test_programs_and_others_stand_in_it_as_well(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    store.discard([job.pk], by="bob", reason="no longer wanted")
    store.retry([job.pk])
    assert entries_of(job) == [("", "retried", ""), ("bob", "discarded", "no longer wanted"), ("ann", "retried", "")]
    assert "a program" in operator.get(page("history", job.pk)).text


def test_two_equal_acts_have_two_entries(operator: Client) -> None:
    job = make_job("failed")
    for _ in range(2):
        operator.post(page("retry", job.pk))
        Job.objects.filter(pk=job.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    assert [text for _, text, _ in entries_of(job)] == ["retried", "retried"]


def test_an_entry_of_another_time_is_another_act(operator: Client) -> None:
    job = make_job("failed")
    operator.post(page("retry", job.pk))
    entry = LogEntry.objects.get()
    LogEntry.objects.update(action_time=entry.action_time - timedelta(hours=1))
    assert [text for _, text, _ in entries_of(job)] == ["retried", "Retried."]


def test_of_the_log_the_newest_entries_are_looked_at(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOG_ENTRIES_SEARCHED", 3)
    first, other = make_job("failed"), make_job("failed")
    operator.post(page("run_again", first.pk), {"confirmed": "yes"})  # two entries, one of them of the copy
    assert len(entries_of(first)) == 1
    for _ in range(3):
        operator.post(page("retry", other.pk))
        Job.objects.filter(pk=other.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    assert entries_of(first) == []
    assert [text for _, text, _ in entries_of(other)] == ["retried"] * 3, "the row has them"


def test_nothing_says_so(operator: Client) -> None:
    text = operator.get(page("history", make_job().pk)).text
    assert "Nobody has changed or copied this job." in text


def test_its_queries_are_few(operator: Client, django_assert_max_num_queries: Any) -> None:
    job = make_job("failed")
    for _ in range(5):
        operator.post(page("retry", job.pk))
        Job.objects.filter(pk=job.pk).update(status="failed", finished_at="2026-01-01T00:00Z")
    operator.get(page("change", job.pk))  # after it, a process knows the numbers of the bar
    with django_assert_max_num_queries(10):  # three of them limit the time
        operator.get(page("history", job.pk))


def test_it_is_for_those_who_may_look(log_in: Callable[..., Client]) -> None:
    assert log_in("retry_job").get(page("history", make_job().pk)).status_code == 403

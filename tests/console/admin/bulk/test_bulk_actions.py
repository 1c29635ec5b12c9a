"""Verbs that a worker applies to all jobs of a list, from the question to the page of their progress."""

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from django_skipqueue.console import counts
from django_skipqueue.console import search as window
from django_skipqueue.console.admin.bulk import BulkAction, BulkProgress, queue_with_workers
from django_skipqueue.console.admin.jobs import job_admin
from django_skipqueue.console.admin.verbs import many_jobs
from django_skipqueue.console.verbs import table
from django_skipqueue.console.verbs.table import RETRY
from django_skipqueue.exceptions import InvalidTask
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job, Queue
from django_skipqueue.models.copies import BULK_TASK
from django_skipqueue.parts.schedules.entry import ScheduleEntry, prepared_job
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ....app.rows import make_job, make_worker, multiply, state
from ....app.waiting import wait_until
from ....harness.processes import workers
from ..conftest import LIST, messages_of, page

pytestmark = pytest.mark.django_db

FAILED_JOBS = f"{LIST}?status=failed"

NEW_YEAR = datetime(2100, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _two_jobs_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave actions on more than two jobs to a worker, which changes two jobs at a time."""
    monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
    monkeypatch.setattr(many_jobs, "BATCH_ROWS", 2)


def act_on_all_jobs(client: Client, address: str = FAILED_JOBS, *, action: str = "retry_selected", **more: str) -> Any:
    data = {"action": action, "_selected_action": "all", "select_across": "1", "confirmed": "yes", **more}
    return client.post(address, data, follow=True)


def get_bulk_job() -> Job:
    return Job.objects.get(task=BULK_TASK)


def test_the_task_of_bulk_actions_is_registered_under_its_name() -> None:
    assert registry.get(BULK_TASK).__module__ == "django_skipqueue.console.jobs"


class TestHandingOver:
    def test_a_worker_retries_many_jobs_and_a_page_shows_the_progress(self, operator: Client) -> None:
        make_worker()
        jobs = [make_job("failed") for _ in range(5)]
        discarded_job = make_job("discarded")
        response = act_on_all_jobs(operator, reason="the PSP is back")
        bulk_job = get_bulk_job()
        assert response.redirect_chain == [(page("progress", bulk_job.pk), 302)]
        assert "Retry 5 jobs" in response.text
        assert "0 of 5 jobs" in response.text
        assert "data-final" not in response.text
        assert (bulk_job.queue_name, bulk_job.priority) == ("default", 100)
        assert {state(job)["status"] for job in jobs} == {"failed"}
        run_only(bulk_job)
        assert get_bulk_job().result == {"changed": 5, "skipped": 0}
        assert {state(job)["status"] for job in jobs} == {"queued"}
        assert state(discarded_job)["status"] == "discarded"
        (operation,) = state(jobs[0])["operations"]
        assert (operation["verb"], operation["by"], operation["reason"]) == ("retry", "ann", "the PSP is back")
        text = operator.get(page("progress", bulk_job.pk)).text
        assert "5 of 5 jobs" in text
        assert "5 jobs were put back into their queues." in text
        assert "data-final" in text
        (entry,) = LogEntry.objects.all()
        assert (entry.user.username, entry.object_repr) == ("ann", "all jobs matching ?status=failed")
        assert entry.change_message.endswith("Filter: ?status=failed Reason: the PSP is back")

    def test_the_question_says_whether_a_worker_will_change_the_jobs(self, operator: Client) -> None:
        for _ in range(3):
            make_job("failed")
        question = {"action": "retry_selected", "_selected_action": "all", "select_across": "1"}
        assert "There is no live worker to change these jobs." in operator.post(FAILED_JOBS, question).text
        make_worker()
        assert "A worker will change these jobs, because there are many." in operator.post(FAILED_JOBS, question).text

    def test_the_question_about_a_partly_searched_list_counts_at_least_the_found_jobs(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        for task in ("a", "b", "a", "a"):
            make_job("failed", task=task)
        address = f"{FAILED_JOBS}&task=a"
        question = {"action": "delete_selected", "_selected_action": "all", "select_across": "1"}
        text = operator.post(address, question).text
        assert "Delete 2 jobs?" in text
        assert "so only jobs in this part are changed" in text
        make_worker()
        text = operator.post(address, question).text
        assert "Delete at least 2 jobs?" in text
        assert "A worker will search the whole list and change all jobs that match." in text
        assert "Type 2 to delete these jobs." in text

    def test_the_question_before_deleting_from_a_partly_searched_list_estimates_all_matches(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        monkeypatch.setattr(counts, "expected", lambda jobs: 51_234)
        for _ in range(4):
            make_job("failed", task="a")
        question = {"action": "delete_selected", "_selected_action": "all", "select_across": "1"}
        assert "Delete 2 jobs?" in operator.post(f"{FAILED_JOBS}&task=a", question).text
        make_worker()
        assert "Type 51,000 to delete these jobs." in operator.post(f"{FAILED_JOBS}&task=a", question).text
        # PostgreSQL cannot estimate the matches of a text, so only the found jobs are counted.
        assert "Type 2 to delete these jobs." in operator.post(f"{FAILED_JOBS}&task=a&q=a", question).text

    def test_a_worker_changes_all_matches_of_a_partly_searched_list(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        make_worker()
        jobs = [make_job("failed", task=task) for task in ("a", "b", "a", "a", "b", "a")]
        act_on_all_jobs(operator, f"{FAILED_JOBS}&look=2&task=a")
        bulk_job = get_bulk_job()
        assert (bulk_job.kwargs["query"], bulk_job.kwargs["number"]) == ("status=failed&task=a", 2)
        text = operator.get(page("progress", bulk_job.pk)).text
        assert "Retry at least 2 jobs" in text
        assert "0 of at least 2 jobs" in text
        assert "Continue without a worker" not in text
        run_only(bulk_job)
        assert [state(job)["status"] for job in jobs] == ["queued" if job.task == "a" else "failed" for job in jobs]
        text = operator.get(page("progress", bulk_job.pk)).text
        assert "Retry 4 jobs" in text
        assert "4 of 4 jobs" in text

    def test_the_worker_counts_jobs_beyond_the_limit_of_the_question(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        # PostgreSQL's statistics may still be about another test's rows.
        monkeypatch.setattr(counts, "expected", lambda jobs: 0)
        make_worker()
        for _ in range(5):
            make_job("failed")
        act_on_all_jobs(operator)
        bulk_job = get_bulk_job()
        assert bulk_job.kwargs["number"] == 3
        assert "0 of at least 3 jobs" in operator.get(page("progress", bulk_job.pk)).text
        run_only(bulk_job)
        assert "5 of 5 jobs" in operator.get(page("progress", bulk_job.pk)).text

    def test_without_a_live_worker_the_web_server_changes_the_jobs(self, operator: Client) -> None:
        for _ in range(3):
            make_job("failed")
        assert messages_of(act_on_all_jobs(operator)) == ["3 jobs were put back into their queues."]
        assert not Job.objects.filter(task=BULK_TASK).exists()

    def test_the_web_server_changes_few_jobs_itself(self, operator: Client) -> None:
        make_worker()
        make_job("failed")
        assert messages_of(act_on_all_jobs(operator)) == ["1 job was put back into its queue."]

    @pytest.mark.parametrize(
        ("queues", "expected"), [([], "default"), (["mail", "x"], "mail"), (["mail", "default"], "default")]
    )
    def test_a_bulk_action_goes_into_a_queue_that_a_worker_serves(self, queues: list[str], expected: str) -> None:
        assert queue_with_workers() is None
        make_worker(queues=queues)
        assert queue_with_workers() == expected
        Queue.pause(expected)
        assert queue_with_workers() in (None, *queues)
        assert queue_with_workers() != expected

    @pytest.mark.parametrize(
        ("action", "status", "after", "answers"),
        [
            ("discard", "queued", {"status": "discarded"}, {}),
            ("cancel", "running", {"status": "discarded"}, {}),
            ("postpone", "queued", {"status": "scheduled"}, {"delay": "5"}),
            ("reschedule", "queued", {"run_after": NEW_YEAR}, {"run_after": "2100-01-01T12:00"}),
            ("change_queue", "queued", {"queue_name": "mail"}, {"queue_name": "mail"}),
            ("change_priority", "scheduled", {"priority": 7}, {"priority": "7"}),
        ],
    )
    def test_every_verb_is_applied_to_all_jobs_but_the_background_job(
        self, operator: Client, action: str, status: str, after: dict[str, Any], answers: dict[str, str]
    ) -> None:
        make_worker()
        jobs = [make_job(status) for _ in range(3)]
        act_on_all_jobs(operator, LIST, action=f"{action}_selected", **answers)
        run_only(get_bulk_job())
        assert get_bulk_job().status == "completed"
        for job in jobs:
            assert {name: state(job)[name] for name in after} == after

    def test_run_again_copies_each_matching_job_once_and_does_not_copy_the_copies(self, operator: Client) -> None:
        make_worker()
        jobs = [make_job("completed", kwargs={"n": number}) for number in range(5)]
        act_on_all_jobs(operator, f"{LIST}?status=completed", action="run_again_selected", reason="lost on the way")
        run_only(get_bulk_job())
        assert get_bulk_job().result == {"changed": 5, "skipped": 0}
        copies = Job.objects.queued().order_by("pk")
        assert [job.kwargs for job in copies] == [job.kwargs for job in jobs]
        assert {entry["reason"] for job in copies for entry in job.operations or []} == {"lost on the way"}

    def test_jobs_are_deleted_after_their_number_is_typed(self, operator: Client) -> None:
        make_worker()
        for _ in range(3):
            make_job("completed")
        act_on_all_jobs(operator, f"{LIST}?status=completed", action="delete_selected", number="3", typed="4")
        assert not Job.objects.filter(task=BULK_TASK).exists()
        act_on_all_jobs(operator, f"{LIST}?status=completed", action="delete_selected", number="3", typed="3")
        run_jobs()
        assert get_bulk_job().result == {"changed": 3, "skipped": 0}
        assert Job.objects.count() == 1


def run_only(job: Job) -> None:
    """Move this job to a queue of its own, and run the queue."""
    Job.objects.filter(pk=job.pk).update(queue_name="only")
    run_jobs(queue_names=["only"])


@pytest.mark.django_db(transaction=True)
class TestRunning:
    def begin(self, operator: Client, address: str = FAILED_JOBS) -> Job:
        make_worker()
        act_on_all_jobs(operator, address)
        bulk_job = get_bulk_job()
        Job.objects.filter(pk=bulk_job.pk).update(queue_name="only")
        return bulk_job

    def test_a_bulk_action_continues_after_its_last_batch_when_it_has_crashed(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [make_job("failed") for _ in range(5)]
        self.begin(operator)
        ids_of_batches = fail_in_batch(2, monkeypatch)
        run_jobs(queue_names=["only"])
        assert (progress := BulkProgress.of(get_bulk_job())) is not None
        assert (progress.changed, progress.after) == (2, jobs[1].pk)
        assert [state(job)["status"] for job in jobs] == ["queued", "queued", "failed", "failed", "failed"]
        Job.objects.filter(pk=jobs[0].pk).update(status="failed", finished_at=state(jobs[4])["finished_at"])
        run_jobs(queue_names=["only"], include_scheduled=True)
        assert get_bulk_job().result == {"changed": 5, "skipped": 0}
        assert state(jobs[0])["status"] == "failed", "the first batch had retried it, and it failed again"
        assert ids_of_batches == [
            [jobs[0].pk, jobs[1].pk],
            [jobs[2].pk, jobs[3].pk],
            [jobs[2].pk, jobs[3].pk],
            [jobs[4].pk],
        ]

    @pytest.mark.parametrize("crashing_batch", range(1, 7))
    def test_a_bulk_action_that_has_crashed_changes_each_job_of_all_windows_once(
        self, operator: Client, crashing_batch: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 4)
        jobs = [make_job("failed", queue_name=f"q{number}") for number in range(11)]
        other_jobs = [make_job("failed", task="another") for _ in range(6)]
        jobs += [make_job("failed")]
        bulk_job = self.begin(operator, f"{FAILED_JOBS}&task=tests.app.jobs.noop")
        ids_of_batches = fail_in_batch(crashing_batch, monkeypatch)
        run_jobs(queue_names=["only"])
        assert Job.objects.filter(operations__isnull=False).count() < len(jobs)
        run_jobs(queue_names=["only"], include_scheduled=True)
        assert state(bulk_job)["result"] == {"changed": len(jobs), "skipped": 0}
        assert {state(job)["status"] for job in other_jobs} == {"failed"}
        assert [len(state(job)["operations"]) for job in jobs] == [1] * len(jobs)
        # Only the batch of the crash was repeated.
        assert sum(map(len, ids_of_batches)) == len(jobs) + len(ids_of_batches[crashing_batch - 1])

    @pytest.mark.parametrize(
        ("action", "answers"),
        [
            ("postpone", {"delay": "60"}),
            ("change_queue", {"queue_name": "zz"}),
            ("change_priority", {"priority": "-5"}),
        ],
    )
    def test_a_job_that_the_action_moves_down_the_list_is_changed_once(
        self, operator: Client, action: str, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        make_worker()
        status = "scheduled" if action == "postpone" else "queued"
        jobs = [make_job(status) for _ in range(6)]
        if status == "scheduled":
            Job.objects.filter(pk__in=[job.pk for job in jobs]).update(run_after=Now() + timedelta(minutes=5))
        Job.objects.filter(pk=jobs[5].pk).update(run_after=Now() + timedelta(minutes=5, seconds=1))
        act_on_all_jobs(
            operator, f"{LIST}?status={status}&task=tests.app.jobs.noop", action=f"{action}_selected", **answers
        )
        run_only(get_bulk_job())
        assert get_bulk_job().result == {"changed": 6, "skipped": 0}
        assert [len(state(job)["operations"]) for job in jobs] == [1] * 6

    def test_a_job_that_the_user_has_retried_before_is_retried_again(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        jobs = [make_job("failed") for _ in range(5)]
        Store.default().retry([job.pk for job in jobs], by="ann")
        for job in jobs:
            Job.objects.filter(pk=job.pk).update(status="failed", finished_at=Now())
        bulk_job = self.begin(operator, f"{FAILED_JOBS}&task=tests.app.jobs.noop")
        run_jobs(queue_names=["only"])
        assert state(bulk_job)["result"] == {"changed": 5, "skipped": 0}

    def test_a_job_that_a_search_finds_by_its_id_is_visited_once(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 3)
        job_with_id = make_job(priority=7)
        for _ in range(8):
            make_job(kwargs={"n": job_with_id.pk})
        make_worker()
        act_on_all_jobs(operator, f"{LIST}?q={job_with_id.pk}", action="change_priority_selected", priority="7")
        run_only(get_bulk_job())
        assert get_bulk_job().result == {"changed": 8, "skipped": 1}, "one job has this priority already"

    def test_stop_ends_a_bulk_action_between_two_batches(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(window, "WINDOW_SIZE", 2)
        for _ in range(8):
            make_job("failed")
        bulk_job = self.begin(operator, f"{FAILED_JOBS}&task=tests.app.jobs.noop")
        batches: list[Any] = []

        def stop_in_third_batch(store: Store, ids: list[int], **notes: Any) -> Any:
            batches.append(ids)
            if len(batches) == 3:
                call_in_another_thread(bulk_job.cancel)
            return RETRY.change(store, ids, **notes)

        replace_retry(stop_in_third_batch, monkeypatch)
        run_jobs(queue_names=["only"])
        assert state(bulk_job)["status"] == "discarded"
        assert (Job.objects.failed().count(), len(batches)) == (4, 3)
        text = operator.get(page("progress", bulk_job.pk)).text
        assert "4 of 8 jobs" in text
        assert "4 jobs were put back into their queues." in text
        assert LogEntry.objects.get().change_message.startswith("4 jobs were put back")

    def test_a_bulk_action_does_not_change_jobs_that_match_only_after_its_start(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            make_job("failed")
        self.begin(operator)
        fail_in_batch(2, monkeypatch)
        run_jobs(queue_names=["only"])
        later_job = make_job("failed")
        run_jobs(queue_names=["only"], include_scheduled=True)
        assert state(later_job)["status"] == "failed"

    @pytest.mark.parametrize(
        "change",
        [
            lambda user: user.delete(),
            lambda user: User.objects.filter(pk=user.pk).update(is_active=False),
            lambda user: User.objects.filter(pk=user.pk).update(is_staff=False),
            lambda user: User.objects.filter(pk=user.pk).update(is_superuser=False),
        ],
    )
    def test_a_bulk_action_changes_nothing_once_its_user_has_lost_the_permission(
        self, operator: Client, change: Callable[[User], Any]
    ) -> None:
        jobs = [make_job("failed") for _ in range(3)]
        bulk_job = self.begin(operator)
        change(User.objects.get())
        run_jobs(queue_names=["only"])
        assert state(bulk_job)["status"] == "discarded"
        assert {state(job)["status"] for job in jobs} == {"failed"}

    def test_the_batch_in_which_a_bulk_action_is_cancelled_is_rolled_back(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [make_job("failed") for _ in range(3)]
        bulk_job = self.begin(operator)

        def cancel_and_retry(store: Store, ids: list[int], **notes: Any) -> Any:
            bulk_job.cancel()
            return RETRY.change(store, ids, **notes)

        replace_retry(cancel_and_retry, monkeypatch)
        run_jobs(queue_names=["only"])
        assert "failed" in {state(job)["status"] for job in jobs}
        assert not LogEntry.objects.exists()

    def test_the_admin_log_counts_the_jobs_changed_before_a_stop(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [make_job("failed") for _ in range(5)]
        bulk_job = self.begin(operator)

        def cancel_in_second_batch(store: Store, ids: list[int], **notes: Any) -> Any:
            if jobs[2].pk in ids:
                bulk_job.cancel()
            return RETRY.change(store, ids, **notes)

        replace_retry(cancel_in_second_batch, monkeypatch)
        run_jobs(queue_names=["only"])
        assert [state(job)["status"] for job in jobs] == ["queued"] * 2 + ["failed"] * 3
        assert LogEntry.objects.get().change_message.startswith("2 jobs were put back")


def call_in_another_thread(function: Callable[[], Any]) -> None:
    """Call a function in another thread, with a connection of its own, as a web server does."""

    def run() -> None:
        try:
            function()
        finally:
            connection.close()

    with ThreadPoolExecutor() as pool:
        pool.submit(run).result()


def fail_in_batch(batch_number: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Raise an error once, after the change of this batch. Returns a list to which the ids of each batch are added."""
    ids_of_batches: list[list[int]] = []

    def change(store: Store, ids: list[int], **notes: Any) -> Any:
        ids_of_batches.append(list(ids))
        changed = RETRY.change(store, ids, **notes)
        if len(ids_of_batches) == batch_number:
            raise RuntimeError("the plug was pulled")
        return changed

    replace_retry(change, monkeypatch)
    return ids_of_batches


def replace_retry(change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the function that retries a batch of jobs."""
    others = (verb for verb in table.CORE_VERBS if verb is not RETRY)
    monkeypatch.setattr(table, "CORE_VERBS", (replace(RETRY, change=change), *others))


class TestThePage:
    def make_bulk_job(self, operator: Client) -> Job:
        make_worker()
        for _ in range(3):
            make_job("failed")
        act_on_all_jobs(operator)
        return get_bulk_job()

    def test_the_fragment_of_the_progress_page_has_no_html_around_it(self, operator: Client) -> None:
        bulk_job = self.make_bulk_job(operator)
        text = operator.get(page("progress", bulk_job.pk) + "?fragment=1").text
        assert "<html" not in text
        assert "0 of 3 jobs" in text
        assert operator.get(page("progress", bulk_job.pk + 1) + "?fragment=1").status_code == 404

    def test_only_bulk_actions_have_a_progress_page(self, operator: Client) -> None:
        job = make_job()
        assert operator.get(page("progress", job.pk)).headers["Location"] == LIST
        assert page("progress", job.pk) not in operator.get(page("change", job.pk)).text
        bulk_job = self.make_bulk_job(operator)
        assert page("progress", bulk_job.pk) in operator.get(page("change", bulk_job.pk)).text

    def test_the_stop_button_cancels_the_bulk_action(self, operator: Client) -> None:
        bulk_job = self.make_bulk_job(operator)
        operator.post(page("progress", bulk_job.pk))
        assert state(bulk_job)["status"] == "discarded"
        assert "data-final" in operator.get(page("progress", bulk_job.pk)).text
        assert LogEntry.objects.get().change_message == "Cancelled."

    def test_a_user_who_may_only_view_jobs_cannot_stop_a_bulk_action(
        self, operator: Client, log_in: Callable[..., Client]
    ) -> None:
        bulk_job = self.make_bulk_job(operator)
        User.objects.update(username="eve")
        client = log_in("view_job")
        text = client.get(page("progress", bulk_job.pk)).text
        assert "Stop" not in text
        assert "Continue without a worker" not in text
        assert client.post(page("progress", bulk_job.pk)).status_code == 403
        assert state(bulk_job)["status"] == "queued"

    def test_the_web_server_can_take_over_a_bulk_action_that_waits(self, operator: Client) -> None:
        bulk_job = self.make_bulk_job(operator)
        assert "Continue without a worker" in operator.get(page("progress", bulk_job.pk)).text
        response = act_on_all_jobs(operator, by_hand=str(bulk_job.pk))
        assert messages_of(response) == ["3 jobs were put back into their queues."]
        assert state(bulk_job)["status"] == "discarded"

    def test_the_web_server_cannot_take_over_a_bulk_action_that_runs(self, operator: Client) -> None:
        bulk_job = self.make_bulk_job(operator)
        Job.objects.claim(queue_names=["default"], worker_id="w")
        assert "Continue without a worker" not in operator.get(page("progress", bulk_job.pk)).text
        assert messages_of(act_on_all_jobs(operator, by_hand=str(bulk_job.pk))) == ["A worker has already begun."]
        assert Job.objects.failed().count() == 3

    def test_taking_over_a_bulk_action_discards_no_other_job(self, operator: Client) -> None:
        self.make_bulk_job(operator)
        other_job = make_job("queued")
        act_on_all_jobs(operator, by_hand=str(other_job.pk))
        assert state(other_job)["status"] == "queued"


@pytest.mark.django_db(transaction=True)
class TestForWhomItActs:
    """A bulk action has the permissions of the user who started it, so no other user may start it again."""

    def make_superusers_bulk_job(self, operator: Client, status: str, **fields: Any) -> Job:
        """Make a bulk job with this status that deletes all failed jobs for the superuser `root`."""
        make_worker()
        for _ in range(3):
            make_job("failed")
        act_on_all_jobs(operator, action="delete_selected", number="3", typed="3")
        bulk_job = get_bulk_job()
        finished_at = None if status == "queued" else state(Job.objects.failed()[0])["finished_at"]
        Job.objects.filter(pk=bulk_job.pk).update(status=status, finished_at=finished_at, queue_name="only", **fields)
        User.objects.update(username="root")
        return bulk_job

    def test_a_bulk_action_cannot_be_run_again(self, operator: Client, log_in: Callable[..., Client]) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "completed")
        client = log_in("view_job", "add_job")
        text = client.get(page("change", bulk_job.pk)).text
        assert page("run_again", bulk_job.pk) not in text
        assert page("edit", bulk_job.pk) not in text
        response = client.post(page("run_again", bulk_job.pk), {"confirmed": "yes"}, follow=True)
        assert messages_of(response) == [
            f"Job {bulk_job.pk} acts for the user who asked for it, so it cannot be run again."
        ]
        client.post(LIST, {"action": "run_again_selected", "_selected_action": bulk_job.pk, "confirmed": "yes"})
        assert Job.objects.filter(task=BULK_TASK).count() == 1

    def test_the_arguments_of_a_bulk_action_cannot_be_edited(
        self, operator: Client, log_in: Callable[..., Client]
    ) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "completed")
        client = log_in("view_job", "add_job")
        edited = {**bulk_job.kwargs, "query": "status=completed"}
        client.post(page("edit", bulk_job.pk), {"confirmed": "yes", "argument_0": json.dumps(edited)})
        assert Job.objects.filter(task=BULK_TASK).count() == 1

    @pytest.mark.parametrize(("username", "failed_count"), [("ann", 3), ("root", 0)])
    def test_a_bulk_action_that_another_user_retries_changes_nothing(
        self, operator: Client, log_in: Callable[..., Client], username: str, failed_count: int
    ) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "discarded")
        bulk_action = BulkAction.of(get_bulk_job())
        assert bulk_action is not None
        signed_action = replace(bulk_action, user="root").signed()
        Job.objects.filter(pk=bulk_job.pk).update(kwargs=asdict(signed_action))
        client = log_in("view_job", "retry_job") if username == "ann" else operator
        client.post(page("retry", bulk_job.pk))
        run_jobs(queue_names=["only"])
        assert state(bulk_job)["status"] == ("discarded" if failed_count else "completed")
        assert Job.objects.failed().count() == failed_count

    def test_a_bulk_action_with_a_full_history_is_discarded(self, operator: Client) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "queued")
        for minutes in range(1, 51):
            Store.default().postpone([bulk_job.pk], timedelta(minutes=minutes), by="bob")
        Store.default().run_now([bulk_job.pk], by="bob")
        run_jobs(queue_names=["only"])
        assert state(bulk_job)["status"] == "discarded"
        assert "job's history is full" in state(bulk_job)["last_error"]
        assert Job.objects.failed().count() == 3

    def test_a_bulk_action_of_one_list_is_not_taken_over_from_another_list(self, operator: Client) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "queued")
        for _ in range(3):
            make_job("completed")
        answers = {"action": "delete_selected", "number": "3", "typed": "3"}
        act_on_all_jobs(operator, f"{LIST}?status=completed", by_hand=str(bulk_job.pk), **answers)
        assert state(bulk_job)["status"] == "queued"
        assert Job.objects.completed().count() == 3

    def test_a_bulk_action_is_not_taken_over_for_another_verb(
        self, operator: Client, log_in: Callable[..., Client]
    ) -> None:
        bulk_job = self.make_superusers_bulk_job(operator, "queued")
        act_on_all_jobs(log_in("view_job", "retry_job"), by_hand=str(bulk_job.pk))
        assert state(bulk_job)["status"] == "queued"
        assert Job.objects.failed().count() == 3


SETTINGS_WITH_ADMIN = """
INSTALLED_APPS += ["django.contrib.admin", "django.contrib.messages", "django.contrib.sessions"]
"""


@pytest.mark.django_db(transaction=True)
def test_another_worker_continues_the_bulk_action_of_a_killed_worker(
    operator: Client, runworker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # use batches of the usual size
    job_count = 12_000
    multiply(make_job("failed"), job_count - 1)
    make_worker(name="for the question")  # without a live worker, the web server would change the jobs itself
    act_on_all_jobs(operator, FAILED_JOBS, over="100000")
    bulk_job = get_bulk_job()
    runworker("--processes", "1", settings=SETTINGS_WITH_ADMIN)
    wait_until(lambda: BulkProgress.of(get_bulk_job()))
    worker = next(worker for worker in workers(2) if worker.name != "for the question")
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: state(bulk_job)["status"] == "completed", deadline=60.0)
    assert get_bulk_job().result == {"changed": job_count, "skipped": 0}
    assert Job.objects.filter(operations__0__verb="retry", operations__1__isnull=True).count() == job_count


class TestForgeries:
    """A bulk job that the admin has not made is refused: a forged row, schedule or deferred job."""

    def test_an_enqueued_action_that_the_admin_has_not_signed_changes_nothing(self, operator: Client) -> None:
        jobs = [make_job("failed") for _ in range(3)]
        make_worker()
        act_on_all_jobs(operator)
        genuine_kwargs = get_bulk_job().kwargs
        forged_kwargs = [
            genuine_kwargs | {"signature": ""},
            genuine_kwargs | {"action": "delete_selected"},
            genuine_kwargs | {"user": "somebody"},
            genuine_kwargs | {"query": ""},
        ]
        get_bulk_job().delete()
        forged_jobs = [Job.objects.enqueue(BULK_TASK, kwargs=json.dumps(kwargs)) for kwargs in forged_kwargs]
        run_jobs()
        assert [state(job)["status"] for job in forged_jobs] == ["discarded"] * len(forged_kwargs)
        assert "The signature of these arguments is not valid" in state(forged_jobs[0])["last_error"]
        assert [state(job)["status"] for job in jobs] == ["failed"] * len(jobs)

    def test_projects_cannot_defer_or_schedule_the_task_of_bulk_actions(self) -> None:
        task = registry.get(BULK_TASK)
        kwargs = {"action": "delete_selected"}
        times: Any = {"interval": timedelta(1), "timezone": "UTC", "source": "admin"}
        entry = ScheduleEntry(name="forged", task=BULK_TASK, kwargs=kwargs, **times)
        deferrals: list[Callable[[], object]] = [
            lambda: task.defer(**kwargs),
            lambda: task.defer_many([kwargs]),
            lambda: task.using(priority=1).s(**kwargs),
            lambda: prepared_job(BULK_TASK, [], kwargs),
            entry.check,
        ]
        for deferral in deferrals:
            with pytest.raises(InvalidTask, match="the package's own task"):
                deferral()
        assert not Job.objects.exists()

    def test_the_form_of_a_schedule_does_not_offer_the_task_of_bulk_actions(self, operator: Client) -> None:
        assert BULK_TASK not in operator.get(reverse("admin:django_skipqueue_schedule_add")).text


@pytest.mark.parametrize(
    "query", ["task=tests.app.jobs.noop%00", "q=%00", "status=failed&time=%00", "queue=default%00"]
)
def test_an_action_on_an_address_with_a_nul_is_logged(operator: Client, query: str) -> None:
    for _ in range(2):
        make_job("failed")
    data = {"action": "delete_selected", "_selected_action": "all", "select_across": "1", "confirmed": "yes"}
    operator.post(f"{LIST}?{query}", data, follow=True)
    (entry,) = LogEntry.objects.all()
    assert "\0" not in entry.change_message
    assert not Job.objects.exists()

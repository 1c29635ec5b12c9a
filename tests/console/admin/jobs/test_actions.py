"""The actions of the list of jobs: they change many jobs in batches, and skip and count jobs that cannot change."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from django_skipqueue.console import counts
from django_skipqueue.console.admin.jobs import job_admin
from django_skipqueue.console.admin.jobs.job_admin import JobAdmin
from django_skipqueue.console.admin.verbs import many_jobs
from django_skipqueue.models import Job

from ....app.rows import STATUSES, make_job
from ....harness.table import Case
from ..conftest import LIST, messages_of

pytestmark = pytest.mark.django_db

FAILED = f"{LIST}?status=failed"

# The permission that each action of the list needs.
ACTIONS = {
    "retry_selected": "retry_job",
    "run_now_selected": "retry_job",
    "postpone_selected": "retry_job",
    "reschedule_selected": "retry_job",
    "change_queue_selected": "retry_job",
    "change_priority_selected": "retry_job",
    "discard_selected": "discard_job",
    "cancel_selected": "discard_job",
    "delete_selected": "delete_job",
    "run_again_selected": "add_job",
}
ACTIONS_ON_WAITING_JOBS = {
    "postpone_selected",
    "reschedule_selected",
    "change_queue_selected",
    "change_priority_selected",
    "discard_selected",
    "delete_selected",
}

ACTIONS_ON_FAILED_JOBS = {"retry_selected", "delete_selected", "run_again_selected"}


def post_action(client: Client, action: str, jobs: list[Job], *, address: str = LIST, **more: str) -> Any:
    """Apply an action of the list to these jobs."""
    data = {"action": action, "_selected_action": [job.pk for job in jobs], **more}
    return client.post(address, data, follow=True)


def status_by_id() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "status"))


class TestTheQuestion:
    def test_no_job_is_changed_before_the_question_is_answered(self, operator: Client, case: Case) -> None:
        for action in ACTIONS:
            with case(action):
                jobs = [make_job(status) for status in STATUSES]
                before = status_by_id()
                response = post_action(operator, action, jobs)
                assert re.search(r" \d of 7 jobs( now| again)?\?$", response.context["title"])
                assert status_by_id() == before
                assert not LogEntry.objects.exists()

    def test_the_question_counts_the_jobs_that_will_be_skipped(self, operator: Client) -> None:
        jobs = [make_job("failed"), make_job("completed"), make_job("running"), make_job("running")]
        response = post_action(operator, "retry_selected", jobs)
        text = " ".join(response.text.split())
        assert response.context["title"] == "Retry 1 of 4 jobs?"
        assert "Will be skipped: 2 running, 1 completed." in text
        assert "Will be skipped: 1 completed." in " ".join(
            post_action(operator, "retry_selected", jobs[:2]).text.split()
        )

    def test_an_action_that_can_change_none_of_the_jobs_has_no_question(self, operator: Client, case: Case) -> None:
        cases: list[tuple[str, str, str]] = [
            ("retry_selected", "completed", "None of these 2 jobs can be retried."),
            ("run_now_selected", "queued", "None of these 2 jobs can be made due."),
            ("postpone_selected", "running", "None of these 2 jobs can be postponed."),
            ("discard_selected", "running", "None of these 2 jobs can be discarded."),
            ("cancel_selected", "failed", "None of these 2 jobs can be cancelled."),
            ("delete_selected", "running", "None of these 2 jobs can be deleted."),
        ]
        for action, status, title in cases:
            with case(action=action, status=status, title=title):
                response = post_action(operator, action, [make_job(status), make_job(status)])
                assert response.context["title"] == response.context["original"] == title
                assert 'name="confirmed"' not in response.text

    def test_the_question_counts_jobs_by_task_and_exception(self, operator: Client) -> None:
        jobs = [make_job("failed", task="a.pay", last_error="psp.Refused: card of ann") for _ in range(3)]
        jobs += [
            make_job("failed", task="a.pay", last_error="KeyError: 'x'"),
            make_job("discarded", last_error="no: x y"),
        ]
        jobs += [make_job("failed", task="a.mail", last_error="not a class at all") for _ in range(2)]
        jobs += [make_job("completed")]
        response = post_action(operator, "retry_selected", jobs)
        kinds = [(kind.number, kind.task, kind.exception) for kind in response.context["summary"].kinds]
        assert kinds[:2] == [(3, "a.pay", "psp.Refused"), (2, "a.mail", "")]
        assert sum(number for number, _, _ in kinds) == 7, "the completed job is not counted"
        assert "no" not in [exception for _, _, exception in kinds]
        assert "<td>3</td>" in response.text
        assert "card of ann" not in response.text

    def test_the_question_counts_further_tasks_together(self, operator: Client) -> None:
        jobs = [make_job("failed", task=f"t{number}") for number in range(11)]
        assert "<td>3</td><td colspan" in post_action(operator, "retry_selected", jobs).text

    def test_the_question_is_asked_again_after_an_invalid_answer(self, operator: Client) -> None:
        job = make_job("queued")
        for minutes in ("0", "x", "", "99999999"):
            response = post_action(operator, "postpone_selected", [job], confirmed="yes", delay=minutes)
            assert "errorlist" in response.text
        assert Job.objects.get(pk=job.pk).status == "queued"

    def test_the_question_says_more_than_or_about_if_there_are_too_many_jobs_to_count(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        jobs = [make_job("failed") for _ in range(6)]
        response = post_action(operator, "retry_selected", jobs[:1], select_across="1")
        assert response.context["title"] == "Retry 6 jobs?"
        assert "Of the first 2 jobs:" in response.text
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 5)
        for expected, number in ((0, "more than 5"), (5, "more than 5"), (9_999_123, "about 10,000,000")):
            monkeypatch.setattr(counts, "expected", lambda jobs, expected=expected: expected)
            response = post_action(operator, "retry_selected", jobs[:1], select_across="1")
            assert response.context["title"] == f"Retry {number} jobs?"

    @pytest.mark.parametrize("cause", ["", "&task=a.pay&cause=KeyError"])
    def test_the_question_counts_the_jobs_with_one_simple_query(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, cause: str
    ) -> None:
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        jobs = [make_job("failed", task="a.pay", errors=[{"exception": "KeyError"}]) for _ in range(4)]
        with CaptureQueriesContext(connection) as queries:
            response = post_action(operator, "retry_selected", jobs[:1], address=f"{FAILED}{cause}", select_across="1")
        assert response.context["title"] == "Retry 4 jobs?"
        statements = [query["sql"] for query in queries]
        (counting,) = (statement for statement in statements if "COUNT(" in statement and "'failed'" in statement)
        assert "ORDER BY" not in counting
        assert "LEFT(" not in counting

    def test_the_question_escapes_html_in_names(self, operator: Client) -> None:
        job = make_job("failed", task="<script>alert(1)</script>")
        text = post_action(operator, "retry_selected", [job]).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


class TestTheAnswer:
    def test_retry_skips_and_counts_jobs_that_it_cannot_change(self, operator: Client) -> None:
        jobs = {status: make_job(status) for status in STATUSES}
        make_job("queued", unique_key="k")
        job_with_held_key = make_job("failed", unique_key="k")
        response = post_action(operator, "retry_selected", [*jobs.values(), job_with_held_key], confirmed="yes")
        assert messages_of(response) == [
            "2 jobs were put back into their queues. 6 were skipped, because they could not be changed."
        ]
        assert {Job.objects.get(pk=jobs[name].pk).status for name in ("failed", "discarded")} == {"queued"}
        assert Job.objects.get(pk=job_with_held_key.pk).status == "failed"

    def test_discard_finishes_waiting_jobs_and_stores_the_user(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post_action(operator, "discard_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["3 jobs were discarded. 4 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Discarded by ann.", status="discarded").count() == 3

    def test_cancel_finishes_unfinished_jobs_and_stores_the_user(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post_action(operator, "cancel_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["4 jobs were cancelled. 3 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Cancelled by ann.", status="discarded").count() == 4

    def test_delete_does_not_change_running_jobs(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post_action(operator, "delete_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["6 jobs were deleted. 1 was skipped, because it could not be changed."]
        assert set(status_by_id().values()) == {"running"}

    def test_a_selected_job_is_changed_even_if_it_has_left_the_list(self, operator: Client) -> None:
        discarded_job, failed_job = make_job("discarded"), make_job("failed")
        response = post_action(
            operator, "retry_selected", [discarded_job, failed_job], address=f"{LIST}?status=failed", confirmed="yes"
        )
        assert messages_of(response) == ["2 jobs were put back into their queues."]

    def test_an_action_on_all_matching_jobs_changes_jobs_of_further_pages(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(many_jobs, "BATCH_ROWS", 2)
        mails = [make_job("failed", queue_name="mail") for _ in range(5)]
        make_job("failed", queue_name="default")
        response = post_action(
            operator, "retry_selected", mails[:1], address=f"{LIST}?status=failed&queue=mail",
            select_across="1", confirmed="yes",
        )  # fmt: skip
        assert messages_of(response) == ["5 jobs were put back into their queues."]
        assert Job.objects.failed().get().queue_name == "default"

    def test_an_action_that_exceeds_its_time_limit_stops_and_says_how_many_jobs_are_left(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(many_jobs, "TIME_LIMIT", 0.0)
        job = make_job("failed")
        for more in ({}, {"select_across": "1"}):
            response = post_action(operator, "retry_selected", [job], confirmed="yes", **more)
            assert messages_of(response) == [
                "0 jobs were put back into their queues. "
                "Stopped after 0 s; 1 job is left. Run the action again to continue."
            ]
        assert Job.objects.get(pk=job.pk).status == "failed"

    def test_retries_are_spread_over_minutes(self, operator: Client) -> None:
        jobs = [make_job("failed") for _ in range(20)]
        post_action(operator, "retry_selected", jobs, confirmed="yes", over="60")
        due_times = list(Job.objects.scheduled().filter(run_after__gt=Now()).values_list("run_after", flat=True))
        assert len(due_times) > 15
        assert timedelta(minutes=5) < max(due_times) - min(due_times) < timedelta(minutes=60)

    def test_run_now_queues_scheduled_jobs_and_keeps_their_attempts(self, operator: Client) -> None:
        later, retrying, queued = make_job("scheduled"), make_job("scheduled", attempts=3), make_job("queued")
        response = post_action(operator, "run_now_selected", [later, retrying, queued], confirmed="yes")
        assert messages_of(response) == ["2 jobs are due now. 1 was skipped, because it could not be changed."]
        assert set(status_by_id().values()) == {"queued"}
        assert Job.objects.get(pk=retrying.pk).attempts == 3

    def test_run_now_on_all_retrying_jobs_does_not_change_other_scheduled_jobs(self, operator: Client) -> None:
        later, retrying = make_job("scheduled"), make_job("scheduled", attempts=1)
        data = {"confirmed": "yes", "select_across": "1"}
        response = post_action(operator, "run_now_selected", [retrying], address=f"{LIST}?status=retrying", **data)
        assert messages_of(response) == ["1 job is due now."]
        assert status_by_id() == {later.pk: "scheduled", retrying.pk: "queued"}

    def test_postpone_schedules_jobs_that_are_due_earlier(self, operator: Client) -> None:
        jobs = [make_job("queued"), make_job("scheduled", run_after=timedelta(minutes=1))]
        later = make_job("scheduled", run_after=timedelta(days=1))
        response = post_action(operator, "postpone_selected", [*jobs, later], confirmed="yes", delay="90")
        assert messages_of(response) == ["2 jobs were postponed. 1 was skipped, because it could not be changed."]
        soon = Job.objects.scheduled().filter(run_after__lt=Now() + timedelta(minutes=91))
        assert {job.pk for job in soon} == {job.pk for job in jobs}

    def test_deleting_very_many_jobs_needs_their_number_typed(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        jobs = [make_job("completed") for _ in range(4)]
        on_all_jobs = {"select_across": "1"}
        response = post_action(operator, "delete_selected", jobs[:1], **on_all_jobs)
        assert "Type 4 to delete these jobs." in response.text
        for typed in ("", "3", "x"):
            second_response = post_action(
                operator, "delete_selected", jobs[:1], confirmed="yes", number="4", typed=typed, **on_all_jobs
            )
            assert "errorlist" in second_response.text
        assert Job.objects.count() == 4
        make_job("completed")  # a job that is added meanwhile does not make the typed number wrong
        post_action(operator, "delete_selected", jobs[:1], confirmed="yes", number="4", typed="4", **on_all_jobs)
        assert not Job.objects.exists()

    def test_deleting_more_jobs_than_are_counted_needs_their_estimate_typed(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The count stops at a number that may be far too low, so typing this number is not accepted."""
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        monkeypatch.setattr(counts, "expected", lambda jobs: 9_999_123)
        jobs = [make_job("completed") for _ in range(5)]
        on_all_jobs = {"select_across": "1", "address": f"{LIST}?status=completed"}
        response = post_action(operator, "delete_selected", jobs[:1], **on_all_jobs)
        assert response.context["title"] == "Delete about 10,000,000 jobs?"
        assert "Type 10,000,000 to delete these jobs." in response.text
        answer = {"confirmed": "yes", "number": "10000000"}
        assert (
            "errorlist" in post_action(operator, "delete_selected", jobs[:1], typed="3", **answer, **on_all_jobs).text
        )
        assert Job.objects.count() == 5
        post_action(operator, "delete_selected", jobs[:1], typed="10,000,000", **answer, **on_all_jobs)
        assert not Job.objects.exists()


class TestTheLog:
    @pytest.mark.parametrize(
        ("action", "status", "flag", "message"),
        [
            ("retry_selected", "failed", CHANGE, "Retried."),
            ("discard_selected", "queued", CHANGE, "Discarded."),
            ("delete_selected", "completed", DELETION, "Deleted."),
        ],
    )
    def test_each_selected_job_that_was_changed_has_an_entry_in_the_admin_log(
        self, operator: Client, action: str, status: str, flag: int, message: str
    ) -> None:
        jobs = [make_job(status), make_job(status), make_job("running")]
        post_action(operator, action, jobs, confirmed="yes")
        entries = LogEntry.objects.values_list("object_id", "object_repr", "action_flag", "change_message")
        assert set(entries) == {(str(job.pk), str(job), flag, message) for job in jobs[:2]}

    def test_all_matching_jobs_share_one_entry_in_the_admin_log(self, operator: Client) -> None:
        jobs = [make_job("failed") for _ in range(3)]
        post_action(
            operator, "retry_selected", jobs[:1], address=f"{LIST}?status=failed&q=tests+app", select_across="1",
            confirmed="yes", reason="the mail server is back",
        )  # fmt: skip
        (entry,) = LogEntry.objects.all()
        assert (entry.user.username, entry.object_repr) == ("ann", "all jobs matching ?status=failed&q=tests app")
        assert entry.change_message == (
            "3 jobs were put back into their queues. Filter: ?status=failed&q=tests app Reason: the mail server is back"
        )

    @pytest.mark.parametrize("across", ["0", "1"])
    def test_each_changed_job_has_an_operation_with_user_and_reason(self, operator: Client, across: str) -> None:
        jobs = [make_job("failed") for _ in range(2)]
        post_action(operator, "retry_selected", jobs, select_across=across, confirmed="yes", reason="it is back")
        for job in Job.objects.all():
            (entry,) = job.operations or []
            assert (entry["verb"], entry["by"], entry["reason"]) == ("retry", "ann", "it is back")


class TestPermissions:
    def test_an_action_without_its_permission_is_neither_offered_nor_done(
        self, log_in: Callable[..., Client], case: Case
    ) -> None:
        for action, permission in ACTIONS.items():
            with case(action=action, permission=permission):
                job = make_job("failed")
                client = log_in("view_job", *(set(ACTIONS.values()) - {permission}))
                assert action not in client.get(LIST).text
                post_action(client, action, [job], confirmed="yes", delay="5")
                assert status_by_id() == {job.pk: "failed"}

    def test_a_user_with_the_permission_for_an_action_may_run_it(
        self, log_in: Callable[..., Client], case: Case
    ) -> None:
        for action, permission in ACTIONS.items():
            with case(action=action, permission=permission):
                job = make_job("failed" if action in ACTIONS_ON_FAILED_JOBS else "scheduled")
                client = log_in("view_job", permission)
                assert action in client.get(LIST).text
                answers = {"confirmed": "yes", "delay": "90", "run_after": "2100-01-01T00:00"}
                answers |= {"queue_name": "mail", "priority": "7"}
                assert "1 job " in messages_of(post_action(client, action, [job], **answers))[0]

    @pytest.mark.parametrize(
        ("state", "offered"),
        [
            ("", set(ACTIONS)),
            ("scheduled", {"run_now_selected", *ACTIONS_ON_WAITING_JOBS}),
            ("retrying", {"run_now_selected", *ACTIONS_ON_WAITING_JOBS}),
            ("queued", ACTIONS_ON_WAITING_JOBS),
            ("running", {"cancel_selected"}),
            ("completed", {"delete_selected", "run_again_selected"}),
            ("failed", ACTIONS_ON_FAILED_JOBS),
            ("discarded", ACTIONS_ON_FAILED_JOBS),
        ],
    )
    def test_the_list_of_a_status_offers_the_actions_that_can_change_its_jobs(
        self, operator: Client, state: str, offered: set[str]
    ) -> None:
        for status in STATUSES:
            make_job(status)
        make_job("scheduled", attempts=1)
        text = operator.get(f"{LIST}?status={state}").text
        assert {name for name in ACTIONS if f'<option value="{name}">' in text} == offered

    def test_users_who_may_only_view_jobs_are_offered_no_action(self, log_in: Callable[..., Client]) -> None:
        make_job()
        response = log_in("view_job").get(LIST)
        assert 'name="action"' not in response.text
        assert "action-select" not in response.text


def test_the_delete_action_of_django_is_replaced(operator: Client) -> None:
    make_job("failed")
    assert operator.get(LIST).text.count('<option value="delete_selected">') == 1


def test_a_subclass_may_add_an_action(rf: RequestFactory) -> None:
    def archive(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> None: ...

    class OwnJobAdmin(JobAdmin):
        actions = (*JobAdmin.actions, archive)

    request = rf.get(LIST, {"status": "running"})
    request.user = User.objects.create_superuser("ann")
    assert {"cancel_selected", "archive"} <= set(OwnJobAdmin(Job, admin.site).get_actions(request))

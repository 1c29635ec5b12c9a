"""The verbs of the list: many jobs at once, in batches, skipping and counting what cannot be changed."""

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

from ...app.rows import STATUSES, make_job
from ...harness.table import Row
from ..conftest import LIST, messages_of

pytestmark = pytest.mark.django_db

FAILED = f"{LIST}?status=failed"

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
FOR_ALL_THAT_WAIT = {
    "postpone_selected",
    "reschedule_selected",
    "change_queue_selected",
    "change_priority_selected",
    "discard_selected",
    "delete_selected",
}

FOR_ALL_THAT_FAILED = {"retry_selected", "delete_selected", "run_again_selected"}


def post(client: Client, action: str, jobs: list[Job], *, address: str = LIST, **more: str) -> Any:
    """Choose an action for these jobs in the list."""
    data = {"action": action, "_selected_action": [job.pk for job in jobs], **more}
    return client.post(address, data, follow=True)


def statuses() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "status"))


class TestTheQuestion:
    def test_nothing_is_changed_before_it_is_answered(self, operator: Client, row: Row) -> None:
        for action in ACTIONS:
            with row(action):
                jobs = [make_job(status) for status in STATUSES]
                before = statuses()
                response = post(operator, action, jobs)
                assert re.search(r" \d of 7 jobs( now| again)?\?$", response.context["title"])
                assert statuses() == before
                assert not LogEntry.objects.exists()

    def test_it_says_which_jobs_will_be_skipped(self, operator: Client) -> None:
        jobs = [make_job("failed"), make_job("completed"), make_job("running"), make_job("running")]
        response = post(operator, "retry_selected", jobs)
        text = " ".join(response.text.split())
        assert response.context["title"] == "Retry 1 of 4 jobs?"
        assert "Will be skipped: 2 running, 1 completed." in text
        assert "Will be skipped: 1 completed." in " ".join(post(operator, "retry_selected", jobs[:2]).text.split())

    def test_what_would_skip_them_all_is_not_offered(self, operator: Client, row: Row) -> None:
        cases: list[tuple[str, str, str]] = [
            ("retry_selected", "completed", "None of these 2 jobs can be retried."),
            ("run_now_selected", "queued", "None of these 2 jobs can be made due."),
            ("postpone_selected", "running", "None of these 2 jobs can be postponed."),
            ("discard_selected", "running", "None of these 2 jobs can be discarded."),
            ("cancel_selected", "failed", "None of these 2 jobs can be cancelled."),
            ("delete_selected", "running", "None of these 2 jobs can be deleted."),
        ]
        for action, status, title in cases:
            with row(action=action, status=status, title=title):
                response = post(operator, action, [make_job(status), make_job(status)])
                assert response.context["title"] == response.context["original"] == title
                assert 'name="confirmed"' not in response.text

    def test_it_counts_tasks_and_exceptions_of_those_it_is_about(self, operator: Client) -> None:
        jobs = [make_job("failed", task="a.pay", last_error="psp.Refused: card of ann") for _ in range(3)]
        jobs += [
            make_job("failed", task="a.pay", last_error="KeyError: 'x'"),
            make_job("discarded", last_error="no: x y"),
        ]
        jobs += [make_job("failed", task="a.mail", last_error="not a class at all") for _ in range(2)]
        jobs += [make_job("completed")]
        response = post(operator, "retry_selected", jobs)
        kinds = [(kind.number, kind.task, kind.exception) for kind in response.context["summary"].kinds]
        assert kinds[:2] == [(3, "a.pay", "psp.Refused"), (2, "a.mail", "")]
        assert sum(number for number, *_ in kinds) == 7
        assert "no" not in [exception for *_, exception in kinds]
        assert "<td>3</td>" in response.text
        assert "card of ann" not in response.text

    def test_kinds_beyond_the_first_are_counted_together(self, operator: Client) -> None:
        jobs = [make_job("failed", task=f"t{number}") for number in range(11)]
        assert "<td>3</td><td colspan" in post(operator, "retry_selected", jobs).text

    def test_what_is_answered_wrongly_is_asked_again(self, operator: Client) -> None:
        job = make_job("queued")
        for minutes in ("0", "x", "", "99999999"):
            response = post(operator, "postpone_selected", [job], confirmed="yes", delay=minutes)
            assert "errorlist" in response.text
        assert Job.objects.get(pk=job.pk).status == "queued"

    def test_above_the_cap_it_says_that_there_are_more(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        jobs = [make_job("failed") for _ in range(6)]
        response = post(operator, "retry_selected", jobs[:1], select_across="1")
        assert response.context["title"] == "Retry 6 jobs?"
        assert "Of the first 2 jobs:" in response.text
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 5)
        for expected, number in ((0, "more than 5"), (5, "more than 5"), (9_999_123, "about 10,000,000")):
            monkeypatch.setattr(counts, "expected", lambda jobs, expected=expected: expected)
            response = post(operator, "retry_selected", jobs[:1], select_across="1")
            assert response.context["title"] == f"Retry {number} jobs?"

    @pytest.mark.parametrize("cause", ["", "&task=a.pay&cause=KeyError"])
    def test_the_jobs_are_counted_once_by_their_ids_alone(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, cause: str
    ) -> None:
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        jobs = [make_job("failed", task="a.pay", errors=[{"exception": "KeyError"}]) for _ in range(4)]
        with CaptureQueriesContext(connection) as queries:
            response = post(operator, "retry_selected", jobs[:1], address=f"{FAILED}{cause}", select_across="1")
        assert response.context["title"] == "Retry 4 jobs?"
        (count,) = (each["sql"] for each in queries if "COUNT(" in each["sql"] and "'failed'" in each["sql"])
        assert "ORDER BY" not in count
        assert "LEFT(" not in count

    def test_hostile_names_are_text(self, operator: Client) -> None:
        job = make_job("failed", task="<script>alert(1)</script>")
        text = post(operator, "retry_selected", [job]).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


class TestTheAnswer:
    def test_retry_changes_what_it_can_and_counts_the_rest(self, operator: Client) -> None:
        jobs = {status: make_job(status) for status in STATUSES}
        make_job("queued", unique_key="k")
        held = make_job("failed", unique_key="k")
        response = post(operator, "retry_selected", [*jobs.values(), held], confirmed="yes")
        assert messages_of(response) == [
            "2 jobs were put back into their queues. 6 were skipped, because they could not be changed."
        ]
        assert {Job.objects.get(pk=jobs[name].pk).status for name in ("failed", "discarded")} == {"queued"}
        assert Job.objects.get(pk=held.pk).status == "failed"

    def test_discard_finishes_what_waits_and_says_who_did_it(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "discard_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["3 jobs were discarded. 4 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Discarded by ann.", status="discarded").count() == 3

    def test_cancel_finishes_what_is_not_finished_and_says_who_did_it(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "cancel_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["4 jobs were cancelled. 3 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Cancelled by ann.", status="discarded").count() == 4

    def test_delete_leaves_running_jobs_alone(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "delete_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["6 jobs were deleted. 1 was skipped, because it could not be changed."]
        assert set(statuses().values()) == {"running"}

    def test_a_job_chosen_by_hand_is_meant_even_where_it_has_left_the_list(self, operator: Client) -> None:
        job, other = make_job("discarded"), make_job("failed")
        response = post(operator, "retry_selected", [job, other], address=f"{LIST}?status=failed", confirmed="yes")
        assert messages_of(response) == ["2 jobs were put back into their queues."]

    def test_all_matching_means_the_filters_and_not_the_page(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(many_jobs, "BATCH_ROWS", 2)
        mails = [make_job("failed", queue_name="mail") for _ in range(5)]
        make_job("failed", queue_name="default")
        response = post(
            operator, "retry_selected", mails[:1], address=f"{LIST}?status=failed&queue=mail",
            select_across="1", confirmed="yes",
        )  # fmt: skip
        assert messages_of(response) == ["5 jobs were put back into their queues."]
        assert Job.objects.failed().get().queue_name == "default"

    def test_it_stops_when_the_time_is_up_and_says_so(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(many_jobs, "TIME_LIMIT", 0.0)
        job = make_job("failed")
        for more in ({}, {"select_across": "1"}):
            response = post(operator, "retry_selected", [job], confirmed="yes", **more)
            assert messages_of(response) == [
                "0 jobs were put back into their queues. "
                "Stopped after 0 s; 1 job is left. Run the action again to continue."
            ]
        assert Job.objects.get(pk=job.pk).status == "failed"

    def test_retries_are_spread_over_minutes(self, operator: Client) -> None:
        jobs = [make_job("failed") for _ in range(20)]
        post(operator, "retry_selected", jobs, confirmed="yes", over="60")
        due = list(Job.objects.scheduled().filter(run_after__gt=Now()).values_list("run_after", flat=True))
        assert len(due) > 15
        assert timedelta(minutes=5) < max(due) - min(due) < timedelta(minutes=60)

    def test_run_now_makes_due_what_waits_for_a_time_with_its_attempts(self, operator: Client) -> None:
        later, retrying, queued = make_job("scheduled"), make_job("scheduled", attempts=3), make_job("queued")
        response = post(operator, "run_now_selected", [later, retrying, queued], confirmed="yes")
        assert messages_of(response) == ["2 jobs are due now. 1 was skipped, because it could not be changed."]
        assert set(statuses().values()) == {"queued"}
        assert Job.objects.get(pk=retrying.pk).attempts == 3

    def test_all_retrying_jobs_are_run_now_and_no_other(self, operator: Client) -> None:
        later, retrying = make_job("scheduled"), make_job("scheduled", attempts=1)
        data = {"confirmed": "yes", "select_across": "1"}
        response = post(operator, "run_now_selected", [retrying], address=f"{LIST}?status=retrying", **data)
        assert messages_of(response) == ["1 job is due now."]
        assert statuses() == {later.pk: "scheduled", retrying.pk: "queued"}

    def test_postpone_has_jobs_wait(self, operator: Client) -> None:
        jobs = [make_job("queued"), make_job("scheduled", run_after=timedelta(minutes=1))]
        later = make_job("scheduled", run_after=timedelta(days=1))
        response = post(operator, "postpone_selected", [*jobs, later], confirmed="yes", delay="90")
        assert messages_of(response) == ["2 jobs were postponed. 1 was skipped, because it could not be changed."]
        soon = Job.objects.scheduled().filter(run_after__lt=Now() + timedelta(minutes=91))
        assert {job.pk for job in soon} == {job.pk for job in jobs}

    def test_who_deletes_very_many_types_their_number(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        jobs = [make_job("completed") for _ in range(4)]
        everything = {"select_across": "1"}
        response = post(operator, "delete_selected", jobs[:1], **everything)
        assert "Type 4 to delete these jobs." in response.text
        for typed in ("", "3", "x"):
            again = post(operator, "delete_selected", jobs[:1], confirmed="yes", number="4", typed=typed, **everything)
            assert "errorlist" in again.text
        assert Job.objects.count() == 4
        make_job("completed")  # what comes meanwhile makes the typed number no wrong one
        post(operator, "delete_selected", jobs[:1], confirmed="yes", number="4", typed="4", **everything)
        assert not Job.objects.exists()

    def test_who_deletes_more_than_are_counted_types_about_how_many_they_are(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And not the number at which the count stops, which may be a thousandth of it."""
        monkeypatch.setattr(job_admin, "MOST_UNTYPED", 2)
        monkeypatch.setattr(many_jobs, "MOST_JOBS_SUMMARISED", 2)
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 3)
        monkeypatch.setattr(counts, "expected", lambda jobs: 9_999_123)
        jobs = [make_job("completed") for _ in range(5)]
        everything = {"select_across": "1", "address": f"{LIST}?status=completed"}
        response = post(operator, "delete_selected", jobs[:1], **everything)
        assert response.context["title"] == "Delete about 10,000,000 jobs?"
        assert "Type 10,000,000 to delete these jobs." in response.text
        answer = {"confirmed": "yes", "number": "10000000"}
        assert "errorlist" in post(operator, "delete_selected", jobs[:1], typed="3", **answer, **everything).text
        assert Job.objects.count() == 5
        post(operator, "delete_selected", jobs[:1], typed="10,000,000", **answer, **everything)
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
    def test_each_job_chosen_by_hand_has_an_entry_if_it_was_changed(
        self, operator: Client, action: str, status: str, flag: int, message: str
    ) -> None:
        jobs = [make_job(status), make_job(status), make_job("running")]
        post(operator, action, jobs, confirmed="yes")
        entries = LogEntry.objects.values_list("object_id", "object_repr", "action_flag", "change_message")
        assert set(entries) == {(str(job.pk), str(job), flag, message) for job in jobs[:2]}

    def test_all_matching_jobs_share_one(self, operator: Client) -> None:
        jobs = [make_job("failed") for _ in range(3)]
        post(
            operator, "retry_selected", jobs[:1], address=f"{LIST}?status=failed&q=tests+app", select_across="1",
            confirmed="yes", reason="the mail server is back",
        )  # fmt: skip
        (entry,) = LogEntry.objects.all()
        assert (entry.user.username, entry.object_repr) == ("ann", "all jobs matching ?status=failed&q=tests app")
        assert entry.change_message == (
            "3 jobs were put back into their queues. Filter: ?status=failed&q=tests app Reason: the mail server is back"
        )

    @pytest.mark.parametrize("across", ["0", "1"])
    def test_each_job_says_who_did_what_and_why(self, operator: Client, across: str) -> None:
        jobs = [make_job("failed") for _ in range(2)]
        post(operator, "retry_selected", jobs, select_across=across, confirmed="yes", reason="it is back")
        for job in Job.objects.all():
            (entry,) = job.operations or []
            assert (entry["verb"], entry["by"], entry["reason"]) == ("retry", "ann", "it is back")


class TestPermissions:
    def test_an_action_is_for_those_who_may(self, log_in: Callable[..., Client], row: Row) -> None:
        for action, permission in ACTIONS.items():
            with row(action=action, permission=permission):
                job = make_job("failed")
                client = log_in("view_job", *(set(ACTIONS.values()) - {permission}))
                assert action not in client.get(LIST).text
                post(client, action, [job], confirmed="yes", delay="5")
                assert statuses() == {job.pk: "failed"}

    def test_its_own_permission_is_enough(self, log_in: Callable[..., Client], row: Row) -> None:
        for action, permission in ACTIONS.items():
            with row(action=action, permission=permission):
                job = make_job("failed" if action in FOR_ALL_THAT_FAILED else "scheduled")
                client = log_in("view_job", permission)
                assert action in client.get(LIST).text
                answers = {"confirmed": "yes", "delay": "90", "run_after": "2100-01-01T00:00"}
                answers |= {"queue_name": "mail", "priority": "7"}
                assert "1 job " in messages_of(post(client, action, [job], **answers))[0]

    @pytest.mark.parametrize(
        ("state", "offered"),
        [
            ("", set(ACTIONS)),
            ("scheduled", {"run_now_selected", *FOR_ALL_THAT_WAIT}),
            ("retrying", {"run_now_selected", *FOR_ALL_THAT_WAIT}),
            ("queued", FOR_ALL_THAT_WAIT),
            ("running", {"cancel_selected"}),
            ("completed", {"delete_selected", "run_again_selected"}),
            ("failed", FOR_ALL_THAT_FAILED),
            ("discarded", FOR_ALL_THAT_FAILED),
        ],
    )
    def test_a_list_offers_what_could_change_its_jobs(self, operator: Client, state: str, offered: set[str]) -> None:
        for status in STATUSES:
            make_job(status)
        make_job("scheduled", attempts=1)
        text = operator.get(f"{LIST}?status={state}").text
        assert {name for name in ACTIONS if f'<option value="{name}">' in text} == offered

    def test_who_may_only_look_is_offered_nothing(self, log_in: Callable[..., Client]) -> None:
        make_job()
        response = log_in("view_job").get(LIST)
        assert 'name="action"' not in response.text
        assert "action-select" not in response.text


def test_the_builtin_action_is_replaced(operator: Client) -> None:
    make_job("failed")
    assert operator.get(LIST).text.count('<option value="delete_selected">') == 1


def test_a_subclass_may_add_an_action(rf: RequestFactory) -> None:
    def archive(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> None: ...

    class OwnJobAdmin(JobAdmin):
        actions = (*JobAdmin.actions, archive)

    request = rf.get(LIST, {"status": "running"})
    request.user = User.objects.create_superuser("ann")
    assert set(OwnJobAdmin(Job, admin.site).get_actions(request)) == {"cancel_selected", "archive"}

"""`actions` and `selection`: many jobs at once, in batches, skipping and counting what cannot be changed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import ModelAdmin
from django.test import Client

from django_skipqueue.admin import actions, selection
from django_skipqueue.admin.actions import Delete, Discard, Retry
from django_skipqueue.admin.selection import Selection
from django_skipqueue.models import Job

from ..app.rows import STATUSES, make_job, make_worker
from ..app.sessions import Session
from .conftest import LIST, messages_of

pytestmark = pytest.mark.django_db

ACTIONS = {
    "retry_selected": "retry_job",
    "discard_selected": "discard_job",
    "cancel_selected": "discard_job",
    "delete_selected": "delete_job",
}


def post(client: Client, action: str, jobs: list[Job], *, address: str = LIST, **more: str) -> Any:
    """Choose an action for these jobs in the list."""
    data = {"action": action, "_selected_action": [job.pk for job in jobs], **more}
    return client.post(address, data, follow=True)


def statuses() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "status"))


class TestTheQuestion:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_nothing_is_changed_before_it_is_answered(self, operator: Client, action: str) -> None:
        jobs = [make_job(status) for status in STATUSES]
        before = statuses()
        response = post(operator, action, jobs)
        assert "6 jobs?" in response.context["title"]
        assert statuses() == before
        assert not LogEntry.objects.exists()

    def test_it_says_which_jobs_will_be_skipped(self, operator: Client) -> None:
        jobs = [make_job("failed"), make_job("completed"), make_job("running"), make_job("running")]
        text = " ".join(post(operator, "retry_selected", jobs).text.split())
        assert "To be skipped as things are: 2 running, 1 completed." in text

    def test_above_the_cap_it_says_that_there_are_more(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_skipqueue.admin.counts.CAP", 2)
        jobs = [make_job("failed") for _ in range(3)]
        response = post(operator, "retry_selected", jobs[:1], select_across="1")
        assert response.context["title"] == "Retry more than 2 jobs?"

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
            "2 jobs were put back into their queues. 5 were skipped, because they could not be changed."
        ]
        assert {Job.objects.get(pk=jobs[name].pk).status for name in ("failed", "discarded")} == {"queued"}
        assert Job.objects.get(pk=held.pk).status == "failed"

    def test_discard_finishes_what_waits_and_says_who_did_it(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "discard_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["2 jobs were discarded. 4 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Discarded by ann.", status="discarded").count() == 2

    def test_cancel_finishes_what_is_not_finished_and_says_who_did_it(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "cancel_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["3 jobs were cancelled. 3 were skipped, because they could not be changed."]
        assert Job.objects.filter(last_error="Cancelled by ann.", status="discarded").count() == 3

    def test_delete_leaves_running_jobs_alone(self, operator: Client) -> None:
        jobs = [make_job(status) for status in STATUSES]
        response = post(operator, "delete_selected", jobs, confirmed="yes")
        assert messages_of(response) == ["5 jobs were deleted. 1 was skipped, because it could not be changed."]
        assert set(statuses().values()) == {"running"}

    def test_a_job_chosen_by_hand_is_meant_even_where_it_has_left_the_list(self, operator: Client) -> None:
        job, other = make_job("discarded"), make_job("failed")
        response = post(operator, "retry_selected", [job, other], address=f"{LIST}?status=failed", confirmed="yes")
        assert messages_of(response) == ["2 jobs were put back into their queues."]

    def test_all_matching_means_the_filters_and_not_the_page(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(selection, "BATCH", 2)
        mails = [make_job("failed", queue_name="mail") for _ in range(5)]
        make_job("failed", queue_name="default")
        response = post(
            operator, "retry_selected", mails[:1], address=f"{LIST}?status=failed&queue=mail",
            select_across="1", confirmed="yes",
        )  # fmt: skip
        assert messages_of(response) == ["5 jobs were put back into their queues."]
        assert Job.objects.failed().get().queue_name == "default"

    def test_it_stops_when_the_time_is_up_and_says_so(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(actions, "TIME_LIMIT", 0.0)
        job = make_job("failed")
        response = post(operator, "retry_selected", [job], confirmed="yes")
        assert "the time was up" in messages_of(response)[0]
        assert Job.objects.get(pk=job.pk).status == "failed"

    def test_ids_that_are_none_are_no_error(self) -> None:
        assert Selection.by_hand(["x", "-1", "9" * 30, "7", "²"]).ids == (7,)


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
        post(operator, "retry_selected", jobs[:1], select_across="1", confirmed="yes")
        (entry,) = LogEntry.objects.all()
        assert (entry.user.username, entry.object_repr) == ("ann", "all matching jobs")
        assert entry.change_message == "3 jobs were put back into their queues."


class TestPermissions:
    @pytest.mark.parametrize(("action", "permission"), ACTIONS.items())
    def test_an_action_is_for_those_who_may(self, log_in: Callable[..., Client], action: str, permission: str) -> None:
        job = make_job("failed")
        client = log_in("view_job", *(set(ACTIONS.values()) - {permission}))
        assert action not in client.get(LIST).text
        post(client, action, [job], confirmed="yes")
        assert statuses() == {job.pk: "failed"}

    @pytest.mark.parametrize(("action", "permission"), ACTIONS.items())
    def test_its_own_permission_is_enough(self, log_in: Callable[..., Client], action: str, permission: str) -> None:
        job = make_job("queued" if permission == "discard_job" else "failed")
        client = log_in("view_job", permission)
        assert action in client.get(LIST).text
        assert "1 job " in messages_of(post(client, action, [job], confirmed="yes"))[0]

    def test_who_may_only_look_is_offered_nothing(self, log_in: Callable[..., Client]) -> None:
        make_job()
        response = log_in("view_job").get(LIST)
        assert 'name="action"' not in response.text
        assert "action-select" not in response.text


class TestBatches:
    def test_ids_ascend_and_end_with_the_newest_there_was_at_the_beginning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(selection, "BATCH", 2)
        jobs = [make_job("failed").pk for _ in range(3)]
        batches = Selection.all_matching(Job.objects.failed().order_by("-finished_at")).batches()
        assert next(batches) == jobs[:2]
        make_job("failed")
        assert list(batches) == [jobs[2:]]

    @pytest.mark.parametrize("action", [Retry(), Discard("ann"), Delete()], ids=lambda action: type(action).__name__)
    def test_a_batch_is_a_few_statements_however_many_jobs(
        self, action: actions.Action, django_assert_max_num_queries: Any
    ) -> None:
        jobs = [make_job("failed").pk for _ in range(20)]
        with django_assert_max_num_queries(4):
            action.change(jobs)


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_claimed_while_it_is_to_be_deleted_is_left_alone(session: Callable[[], Session]) -> None:
    job, waiting = make_job("queued", priority=1), make_job("queued")
    make_worker()
    other = session()
    other.begin()
    other(lambda: Job.objects.claim(queue_names=["default"], limit=1, worker_id="w"))
    assert Delete().change([job.pk, waiting.pk]) == {waiting.pk}
    other.commit()
    assert statuses() == {job.pk: "running"}


def test_the_builtin_action_is_replaced() -> None:
    from django.contrib import admin

    job_admin: ModelAdmin[Job] = admin.site.get_model_admin(Job)
    assert job_admin.delete_selected.__qualname__.startswith("JobAdmin.")  # type: ignore[attr-defined]

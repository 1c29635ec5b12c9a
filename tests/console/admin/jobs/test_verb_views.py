"""The buttons on the page of one job."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_skipqueue import Batch
from django_skipqueue.models import Job

from ....app import jobs
from ....app.rows import STATUSES, UNFINISHED, WAITING, make_job, state
from ....harness.table import Case
from ..conftest import LIST, messages_of, page

pytestmark = pytest.mark.django_db

# The permission that each verb needs.
PERMISSION_BY_VERB = {
    "retry": "retry_job",
    "run_now": "retry_job",
    "reschedule": "retry_job",
    "change_queue": "retry_job",
    "change_priority": "retry_job",
    "discard": "discard_job",
    "cancel": "discard_job",
    "run_again": "add_job",
}
# The statuses of jobs to which each verb may be applied.
ALLOWED_STATUSES = {
    "retry": {"failed", "discarded"},
    "run_now": {"scheduled"},
    "reschedule": {*WAITING},
    "change_queue": {*WAITING},
    "change_priority": {*WAITING},
    "discard": {*WAITING},
    "cancel": {"running"},
    "run_again": {"completed", "failed", "discarded"},
}

# The status of the job on which a verb is tested. Verbs that are not listed here are tested on a failed job.
STATUS_BEFORE_VERB = {
    "run_now": "scheduled",
    "reschedule": "queued",
    "change_queue": "queued",
    "change_priority": "queued",
    "discard": "queued",
    "cancel": "running",
}
ANSWERS = {
    "confirmed": "yes",
    "run_after": "2100-01-01T12:30:15",
    "queue_name": "mail",
    "priority": "7",
}


def press_button(client: Client, verb: str, job: Job) -> Any:
    return client.post(page(verb, job.pk), ANSWERS, follow=True)


class TestButtons:
    def test_a_job_has_the_buttons_that_its_status_allows(self, operator: Client, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                text = operator.get(page("change", job.pk)).text
                assert {verb for verb in ALLOWED_STATUSES if page(verb, job.pk) in text} == {
                    verb for verb, allowed in ALLOWED_STATUSES.items() if status in allowed
                }
                assert (page("delete", job.pk) in text) == (status != "running")

    def test_users_who_may_only_view_jobs_have_no_button(self, log_in: Callable[..., Client], case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                text = log_in("view_job").get(page("change", job.pk)).text
                assert not any(page(verb, job.pk) in text for verb in (*ALLOWED_STATUSES, "delete"))

    def test_each_verb_needs_its_own_permission(self, log_in: Callable[..., Client], case: Case) -> None:
        for verb, permission in PERMISSION_BY_VERB.items():
            with case(verb=verb, permission=permission):
                job = make_job(STATUS_BEFORE_VERB.get(verb, "failed"))
                before = state(job)
                client = log_in(
                    "view_job", "change_job", "delete_job", *(set(PERMISSION_BY_VERB.values()) - {permission})
                )
                assert page(verb, job.pk) not in client.get(page("change", job.pk)).text
                assert press_button(client, verb, job).status_code == 403
                assert state(job) == before
                assert Job.objects.count() == 1

    def test_a_verb_needs_the_permission_to_view_jobs_as_well(self, log_in: Callable[..., Client], case: Case) -> None:
        for verb, permission in PERMISSION_BY_VERB.items():
            with case(verb=verb, permission=permission):
                job = make_job(STATUS_BEFORE_VERB.get(verb, "failed"))
                before = state(job)
                data = {"confirmed": "yes", "over": "90"}
                assert log_in(permission).post(page(verb, job.pk), data).status_code == 403
                assert state(job) == before
                assert Job.objects.count() == 1

    def test_a_get_request_changes_no_job(self, operator: Client, case: Case) -> None:
        for verb in ALLOWED_STATUSES:
            with case(verb):
                job = make_job("failed")
                before = state(job)
                assert operator.get(page(verb, job.pk), follow=True).status_code in (200, 405)
                assert state(job) == before

    def test_a_post_from_elsewhere_is_refused(self, operator: Client, case: Case) -> None:
        for verb in ALLOWED_STATUSES:
            with case(verb):
                job = make_job("failed")
                operator.handler.enforce_csrf_checks = True
                assert press_button(operator, verb, job).status_code == 403
                assert state(job)["status"] == "failed"

    def test_a_visitor_who_is_not_logged_in_is_asked_to_log_in(self, client: Client) -> None:
        job = make_job("failed")
        assert "/login/" in client.post(page("retry", job.pk)).headers["Location"]


class TestTheQuestion:
    def test_every_verb_but_retry_asks_a_question_first(self, operator: Client, case: Case) -> None:
        for verb in ("reschedule", "change_queue", "change_priority", "discard", "cancel", "run_again"):
            with case(verb):
                job = make_job(STATUS_BEFORE_VERB.get(verb, "completed"))
                before = state(job)
                response = operator.get(page(verb, job.pk))
                assert f"job {job.pk}" in response.context["title"]
                assert response.context["title"].endswith("?")
                assert 'name="confirmed"' in response.text
                assert 'name="confirmed"' in operator.post(page(verb, job.pk)).text
                assert state(job) == before
                assert Job.objects.count() == 1
                assert not LogEntry.objects.exists()

    def test_retry_asks_no_question(self, operator: Client) -> None:
        job = make_job("failed")
        assert operator.get(page("retry", job.pk)).status_code == 405
        operator.post(page("retry", job.pk))
        assert state(job)["status"] == "queued"

    def test_only_the_retry_button_is_highlighted(self, operator: Client) -> None:
        text = operator.get(page("change", make_job("failed").pk)).text
        assert re.findall(r'<(?:button|a)[^>]* class="button"[^>]*>([^<]*)<', text) == ["Retry"]
        for status in (*UNFINISHED, "completed"):
            assert 'class="button"' not in operator.get(page("change", make_job(status).pk)).text

    def test_a_verb_that_would_do_nothing_asks_no_question(self, operator: Client) -> None:
        job = make_job("completed")
        response = operator.get(page("cancel", job.pk), follow=True)
        assert response.redirect_chain[-1][0] == page("change", job.pk)
        assert messages_of(response) == [f"“Cancel” did nothing, because job {job.pk} is now completed."]

    def test_the_reason_of_a_cancellation_is_stored_in_the_job(self, operator: Client) -> None:
        job = make_job("running")
        operator.post(page("cancel", job.pk), {"confirmed": "yes", "reason": "it hung"})
        assert state(job)["last_error"] == "Cancelled by ann: it hung"

    def test_the_question_is_asked_again_if_the_reason_is_too_long(self, operator: Client) -> None:
        job = make_job("running")
        response = operator.post(page("cancel", job.pk), {"confirmed": "yes", "reason": "x" * 201})
        assert "at most 200 characters" in response.text
        assert state(job)["status"] == "running"


class TestRetry:
    def test_retry_puts_the_job_back_into_its_queue_and_is_logged(self, operator: Client) -> None:
        job = make_job("failed", queue_name="mail")
        response = press_button(operator, "retry", job)
        assert response.redirect_chain[-1][0] == page("change", job.pk)
        assert messages_of(response) == [f"Job {job.pk} is back in the queue “mail”."]
        assert state(job)["status"] == "queued"
        (entry,) = LogEntry.objects.all()
        assert (entry.object_id, entry.change_message, entry.user.username) == (str(job.pk), "Retried.", "ann")

    def test_the_message_names_the_holder_of_a_unique_key(self, operator: Client) -> None:
        job = make_job("failed", unique_key="k")
        holder = make_job("running", unique_key="k")
        message = f"Nothing was done, because job {holder.pk}, which is running, holds the unique key “k”."
        assert messages_of(press_button(operator, "retry", job)) == [message]
        assert not LogEntry.objects.exists()


class TestRunNow:
    def test_run_now_makes_the_job_due_and_is_logged(self, operator: Client) -> None:
        job = make_job("scheduled", attempts=2)
        assert messages_of(press_button(operator, "run_now", job)) == [f"Job {job.pk} is due now."]
        assert (state(job)["status"], state(job)["attempts"]) == ("queued", 2)
        assert LogEntry.objects.get().change_message == "Made due."


class TestReschedule:
    @pytest.mark.parametrize("status", ["queued", "scheduled"])
    def test_reschedule_sets_the_due_time_and_is_logged(self, operator: Client, status: str) -> None:
        job = make_job(status, run_after=timedelta(days=100_000) if status == "scheduled" else timedelta(0))
        assert messages_of(press_button(operator, "reschedule", job)) == [
            f"Job {job.pk} is due at 2100-01-01 12:30:15 UTC."
        ]
        after = state(job)
        assert (after["status"], after["run_after"]) == ("scheduled", datetime(2100, 1, 1, 12, 30, 15, tzinfo=UTC))
        assert LogEntry.objects.get().change_message == "Rescheduled."

    def test_the_time_of_reschedule_is_in_the_current_time_zone(self, operator: Client, settings: Any) -> None:
        settings.TIME_ZONE = "Europe/Berlin"
        job = make_job("scheduled", run_after=datetime(2090, 7, 1, 10, tzinfo=UTC))
        text = operator.get(page("reschedule", job.pk)).text
        assert 'value="2090-07-01T12:00:00"' in text
        assert "Europe/Berlin" in text
        press_button(operator, "reschedule", job)
        assert state(job)["run_after"] == datetime(2100, 1, 1, 11, 30, 15, tzinfo=UTC)

    def test_reschedule_to_a_time_in_the_past_makes_the_job_due_now(self, operator: Client) -> None:
        job = make_job("scheduled")
        operator.post(page("reschedule", job.pk), {"confirmed": "yes", "run_after": "2020-01-01T00:00"})
        assert state(job)["status"] == "queued"

    @pytest.mark.parametrize("typed", ["", "tomorrow", "9999-12-31T23:59", "0001-01-01T00:00"])
    def test_the_question_is_asked_again_after_an_invalid_time(self, operator: Client, typed: str) -> None:
        job = make_job("queued")
        assert "errorlist" in operator.post(page("reschedule", job.pk), {"confirmed": "yes", "run_after": typed}).text
        assert state(job)["status"] == "queued"


class TestChanges:
    def test_a_job_goes_into_another_queue(self, operator: Client) -> None:
        job = make_job("queued")
        assert messages_of(press_button(operator, "change_queue", job)) == [f"Job {job.pk} is now in the queue “mail”."]
        assert (state(job)["status"], state(job)["queue_name"]) == ("queued", "mail")
        assert LogEntry.objects.get().change_message == "Put into another queue."
        assert "default → mail" in operator.get(page("change", job.pk)).text
        assert "Put into another queue: default → mail" in operator.get(page("history", job.pk)).text
        assert messages_of(press_button(operator, "change_queue", job)) == [f"Job {job.pk} is already in this queue."]

    def test_a_job_gets_another_priority(self, operator: Client) -> None:
        job = make_job("scheduled", priority=3)
        assert 'value="3"' in operator.get(page("change_priority", job.pk)).text
        assert messages_of(press_button(operator, "change_priority", job)) == [f"Job {job.pk} now has the priority 7."]
        assert (state(job)["status"], state(job)["priority"]) == ("scheduled", 7)
        assert messages_of(press_button(operator, "change_priority", job)) == [
            f"Job {job.pk} already has this priority."
        ]

    def test_the_priority_can_be_zero(self, operator: Client) -> None:
        job = make_job("queued", priority=3)
        operator.post(page("change_priority", job.pk), {"confirmed": "yes", "priority": "0"})
        assert state(job)["priority"] == 0

    @pytest.mark.parametrize(
        ("verb", "typed"),
        [
            ("queue", ""),
            ("queue", "a,b"),
            ("queue", "x" * 1001),
            ("priority", "101"),
            ("priority", "x"),
            ("priority", ""),
        ],
    )
    def test_the_question_is_asked_again_after_an_invalid_queue_or_priority(
        self, operator: Client, verb: str, typed: str
    ) -> None:
        job = make_job("queued")
        data = {"confirmed": "yes", "queue_name": typed, "priority": typed}
        assert "errorlist" in operator.post(page(f"change_{verb}", job.pk), data).text
        assert state(job)["operations"] is None


class TestDiscard:
    def test_discard_finishes_the_job_and_is_logged(self, operator: Client) -> None:
        job = make_job("scheduled")
        assert messages_of(press_button(operator, "discard", job)) == [f"Job {job.pk} is discarded."]
        assert (state(job)["status"], state(job)["last_error"]) == ("discarded", "Discarded by ann.")
        assert LogEntry.objects.get().change_message == "Discarded."
        assert "Discarded by ann." in operator.get(page("change", job.pk)).text


class TestCancel:
    def test_cancel_discards_the_running_job_and_is_logged(self, operator: Client) -> None:
        job = make_job("running")
        message = [f"Job {job.pk} is cancelled; its task ends within a second or two."]
        assert messages_of(press_button(operator, "cancel", job)) == message
        assert (state(job)["status"], state(job)["last_error"]) == ("discarded", "Cancelled by ann.")
        assert LogEntry.objects.get().change_message == "Cancelled."


class TestRunAgain:
    def test_run_again_enqueues_a_copy_and_leaves_the_job_unchanged(self, operator: Client) -> None:
        job = make_job(
            "completed", queue_name="mail", task="t", args=[1, "é"], kwargs={"a": [None]}, priority=7, max_attempts=3
        )
        before = state(job)
        response = press_button(operator, "run_again", job)
        copy = Job.objects.exclude(pk=job.pk).get()
        assert response.redirect_chain[-1][0] == page("change", copy.pk)
        assert state(job) == before
        copied_columns = ("queue_name", "task", "args", "kwargs", "priority", "max_attempts")
        assert [getattr(copy, name) for name in copied_columns] == [getattr(job, name) for name in copied_columns]
        assert (copy.status, copy.attempts) == ("queued", 0)
        assert dict(LogEntry.objects.values_list("object_id", "change_message")) == {
            str(job.pk): f"Run again as job {copy.pk}.",
            str(copy.pk): f"Copied from job {job.pk}.",
        }

    def test_a_copy_does_not_enter_the_batch_of_the_job(self, operator: Client) -> None:
        """The job's batch may be finished, and its callbacks may have been enqueued."""
        with Batch() as batch:
            job = jobs.noop.defer()
        assert job.batch_id == batch.id
        Job.objects.filter(pk=job.pk).cancel()
        press_button(operator, "run_again", job)
        assert Job.objects.exclude(pk=job.pk).get().batch_id is None

    def test_run_again_copies_numbers_that_python_cannot_represent(self, operator: Client) -> None:
        from django.db import connection

        job = make_job("completed")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE skipqueue_job SET args = '[1e400, 1.10]' WHERE id = %s", [job.pk])
            press_button(operator, "run_again", job)
            cursor.execute("SELECT count(DISTINCT args::text), count(*) FROM skipqueue_job")
            assert cursor.fetchone() == (1, 2)

    def test_a_copy_takes_the_unique_key_of_its_job(self, operator: Client) -> None:
        job = make_job("completed", unique_key="k")
        press_button(operator, "run_again", job)
        assert Job.objects.queued().get().unique_key == "k"
        assert "holds the unique key" in messages_of(press_button(operator, "run_again", job))[0]
        assert Job.objects.count() == 2

    @pytest.mark.parametrize("status", UNFINISHED)
    def test_a_job_that_is_not_finished_is_not_copied(self, operator: Client, status: str) -> None:
        job = make_job(status)
        assert messages_of(press_button(operator, "run_again", job)) == [
            f"“Run again as a new job” did nothing, because job {job.pk} is now {status}."
        ]
        assert Job.objects.count() == 1


class TestRaces:
    @pytest.mark.parametrize(("verb", "status"), [("retry", "completed"), ("discard", "running")])
    def test_the_message_of_a_verb_that_did_nothing_names_the_current_status(
        self, operator: Client, verb: str, status: str
    ) -> None:
        job = make_job(status)
        before = state(job)
        assert f"job {job.pk} is now {status}." in messages_of(press_button(operator, verb, job))[0]
        assert state(job) == before
        assert not LogEntry.objects.exists()

    def test_a_verb_on_a_deleted_job_redirects_to_the_list(self, operator: Client, case: Case) -> None:
        for verb in ALLOWED_STATUSES:
            with case(verb):
                response = operator.post(page(verb, 4_711), follow=True)
                assert response.redirect_chain[-1][0] == LIST
                assert messages_of(response) == ["There is no job 4711. It may have been deleted."]

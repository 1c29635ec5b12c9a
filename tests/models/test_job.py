"""`Job` and `Worker`: their methods for operators and for loops without a worker, and the constraints of the table."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.db.models.functions import Now

from django_skipqueue import Discard, Retry, Snooze
from django_skipqueue.exceptions import InvalidArguments, LeaseLost
from django_skipqueue.models import FINISHED, Job, Status
from django_skipqueue.queue.store import Store
from django_skipqueue.signals import jobs_operated
from django_skipqueue.values import statuses
from django_skipqueue.values.backoff import RetryPolicy, constant

from ..app import jobs
from ..app.rows import STATUSES, UNFINISHED, WAITING, make_job, make_worker, state
from ..harness.table import Case

store = Store("default")

pytestmark = pytest.mark.django_db


def claim_one(**fields: Any) -> Job:
    make_job(**fields)
    (job,) = Job.objects.claim(queue_names=["default"], limit=1, worker_id="by hand")
    return job


@pytest.mark.core
def test_a_loop_written_by_hand_works_through_a_queue() -> None:
    jobs.add.defer_many([(1, 2), (3, 4), ("x", 1)])
    while claimed_jobs := Job.objects.claim(queue_names=["default"], limit=2, worker_id="by hand"):
        for job in claimed_jobs:
            job.heartbeat()
            try:
                result = jobs.add(*job.args, **job.kwargs)
            except TypeError as error:
                job.fail(error, policy=RetryPolicy(retry_on=()))
            else:
                job.complete(result)
    assert list(Job.objects.order_by("pk").values_list("status", "result")) == [
        ("completed", 3),
        ("completed", 7),
        ("failed", None),
    ]


class TestForTheHolderOfTheLease:
    @pytest.mark.core
    def test_complete_writes_the_result(self, case: Case) -> None:
        results: list[Any] = [None, 0, "", [], {"a": [1.5, None]}, False]
        for result in results:
            with case(result=result):
                job = claim_one()
                job.complete(result)
                stored_job = Job.objects.get()
                assert (job.status, stored_job.status, stored_job.result) == (
                    Status.COMPLETED,
                    Status.COMPLETED,
                    result,
                )
                assert stored_job.finished_at

    def test_complete_refuses_a_result_that_is_not_json_and_leaves_the_job_running(self, case: Case) -> None:
        results: list[Any] = [{1}, float("nan"), "\0", object()]
        for result in results:
            with case(result=result):
                job = claim_one()
                with pytest.raises(InvalidArguments, match="The result"):
                    job.complete(result)
                assert state(job)["status"] == "running"
                job.complete("something else")

    @pytest.mark.core
    def test_fail_schedules_the_next_attempt_by_the_default_backoff(self) -> None:
        job = claim_one()
        job.fail(ValueError("no"))
        stored = state(job)
        assert (stored["status"], stored["last_error"]) == ("scheduled", "ValueError: no")
        assert timedelta(seconds=1.5) < stored["run_after"] - job.locked_at < timedelta(seconds=5)
        (entry,) = stored["errors"]
        assert (entry["worker"], entry["attempt"], entry["exception"]) == ("by hand", 1, "builtins.ValueError")

    def test_fail_does_what_the_policy_and_the_exception_say(self, case: Case) -> None:
        errors_and_statuses: list[tuple[Exception, str]] = [
            (ValueError("no"), "queued"),
            (Retry(after=0), "queued"),
            (Retry(after=60), "scheduled"),
            (Snooze(after=60), "scheduled"),
            (Snooze(after=0), "queued"),
            (Discard("not wanted"), "discarded"),
            (KeyError("listed"), "failed"),
        ]
        for error, status in errors_and_statuses:
            with case(error=error, status=status):
                job = claim_one()
                job.fail(error, policy=RetryPolicy(backoff=constant(0), retry_on=(ValueError,)))
                assert state(job)["status"] == status
                assert job.status == status, "the object says what the row says"

    def test_the_last_attempt_fails_for_good(self) -> None:
        job = claim_one(max_attempts=3, attempts=2)
        job.fail(ValueError("no"))
        assert (state(job)["status"], job.status) == ("failed", Status.FAILED)

    @pytest.mark.core
    def test_release_puts_the_job_back_without_charging_the_attempt(self) -> None:
        job = claim_one()
        job.release()
        stored = state(job)
        assert (stored["status"], stored["attempts"], job.status) == ("queued", 0, Status.QUEUED)

    @pytest.mark.core
    def test_heartbeat_renews_the_time_of_the_lock(self) -> None:
        job = claim_one()
        Job.objects.update(locked_at=Now() - timedelta(hours=1))
        job.heartbeat()
        assert store.recover(worker_timeout=60) == []


WORKER_VERBS: dict[str, Callable[[Job], None]] = {
    "complete": lambda job: job.complete(),
    "fail": lambda job: job.fail(ValueError("no")),
    "release": lambda job: job.release(),
    "heartbeat": lambda job: job.heartbeat(),
}


def discard_and_retry(job: Job) -> None:
    job.fail(Discard("x"))
    Job.objects.get(pk=job.pk).retry()


WAYS_TO_LOSE_A_LEASE: dict[str, Callable[[Job], object]] = {
    "recovered": lambda job: store.recover(worker_ids=["by hand"]),
    "released": lambda job: store.release([(job.pk, job.lease)]),
    "completed elsewhere": lambda job: Job.objects.get(pk=job.pk).complete(),
    "completed here": lambda job: job.complete(),
    "discarded and retried": discard_and_retry,
    "deleted": lambda job: Job.objects.all().delete(),
}


class TestWithoutTheLease:
    def test_a_worker_that_has_lost_the_lease_writes_nothing_and_gets_an_error(self, case: Case) -> None:
        for verb, loss in product(WORKER_VERBS, WAYS_TO_LOSE_A_LEASE):
            with case(verb=verb, loss=loss):
                job = claim_one()
                WAYS_TO_LOSE_A_LEASE[loss](job)
                rows_before = list(Job.objects.values())
                with pytest.raises(LeaseLost, match=f"Job {job.pk} is "):
                    WORKER_VERBS[verb](job)
                assert list(Job.objects.values()) == rows_before

    def test_a_job_that_no_worker_has_claimed_cannot_be_settled(self, case: Case) -> None:
        for verb, status in product(WORKER_VERBS, [status for status in STATUSES if status != "running"]):
            with case(verb=verb, status=status):
                job = make_job(status)
                rows_before = state(job)
                with pytest.raises(LeaseLost):
                    WORKER_VERBS[verb](job)
                assert state(job) == rows_before


OPERATORS_VERBS: dict[str, tuple[Callable[[Job], bool], str, Status]] = {
    "retry": (lambda job: job.retry(), "failed", Status.QUEUED),
    "retry later": (lambda job: job.retry(over=3600.0), "failed", Status.SCHEDULED),
    "discard": (lambda job: job.discard(), "queued", Status.DISCARDED),
    "cancel": (lambda job: job.cancel(), "running", Status.DISCARDED),
    "run_now": (lambda job: job.run_now(), "scheduled", Status.QUEUED),
    "postpone": (lambda job: job.postpone(timedelta(hours=1)), "queued", Status.SCHEDULED),
    "reschedule": (lambda job: job.reschedule(timedelta(hours=1)), "queued", Status.SCHEDULED),
    "reschedule earlier": (lambda job: job.reschedule(timedelta(hours=-1)), "scheduled", Status.QUEUED),
    "change_queue": (lambda job: job.change_queue("mail"), "queued", Status.QUEUED),
    "change_priority": (lambda job: job.change_priority(7), "scheduled", Status.SCHEDULED),
}
"""By name: the call of the verb, a status of a job that allows it, and the status after the call."""


class TestForOperators:
    @pytest.mark.core
    def test_retry_says_whether_the_status_allowed_it(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                assert job.retry() == (status in ("failed", "discarded"))

    @pytest.mark.core
    def test_discard_says_whether_the_status_allowed_it(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                job = make_job(status)
                assert job.discard("not wanted") == (status in WAITING)
                assert state(job)["last_error"] == ("not wanted" if status in WAITING else "")

    def test_a_verb_sets_the_status_of_the_object_without_reading_the_row_again(self, case: Case) -> None:
        """The row may have another status when the verb returns: a worker may have claimed the job, or deleted it."""
        for verb in OPERATORS_VERBS:
            with case(verb):
                call, status_before, status_after = OPERATORS_VERBS[verb]
                job = make_job(status_before)

                def receive(**_: Any) -> None:
                    Job.objects.all().delete()

                jobs_operated.connect(receive)
                try:
                    assert call(job)
                finally:
                    jobs_operated.disconnect(receive)
                assert job.status is status_after
                assert not Job.objects.exists()

    def test_a_job_whose_key_is_taken_is_not_retried(self) -> None:
        job = make_job("failed", unique_key="k")
        make_job(unique_key="k")
        assert job.retry() is False


class TestRows:
    @pytest.mark.core
    def test_each_status_has_a_filter_of_its_name(self, case: Case) -> None:
        for status in STATUSES:
            with case(status):
                for other_status in STATUSES:
                    make_job(other_status)
                assert [job.status for job in getattr(Job.objects, status)()] == [status]
                assert [job.status for job in getattr(Job.objects.all(), status)()] == [status]

    def test_the_filter_unfinished_finds_jobs_of_every_unfinished_status(self) -> None:
        for other_status in STATUSES:
            make_job(other_status)
        assert set(Job.objects.unfinished().values_list("status", flat=True)) == set(UNFINISHED)

    def test_each_status_is_in_one_group(self) -> None:
        assert sorted(statuses.UNFINISHED_STATUSES + statuses.FINISHED_STATUSES) == sorted(Status.values)

    def test_a_status_knows_whether_it_is_finished(self) -> None:
        assert {status for status in Status if status.is_finished} == set(FINISHED)

    def test_the_text_of_a_job_is_its_task_and_its_id(self) -> None:
        job = make_job()
        assert str(job) == f"tests.app.jobs.noop #{job.pk}"
        assert str(make_worker(name="web-1")) == "web-1"

    def test_the_row_of_a_job_names_the_worker_that_ran_it(self, case: Case) -> None:
        for locked_by, name in {
            "web/1:0123456789ab": "web/1",
            "a:b:0123456789ab": "a:b",
            "gpu-1": "gpu-1",
            "web/1:0123456789AB": "web/1:0123456789AB",
            "web/1:0123456789abc": "web/1:0123456789abc",
            "": "",
        }.items():
            with case(locked_by=locked_by, name=name):
                assert make_job("completed", locked_by=locked_by).worker_name == name

    def test_a_worker_is_live_until_the_worker_timeout_after_its_heartbeat(self) -> None:
        worker = make_worker()
        worker.refresh_from_db()
        heartbeat_at = worker.heartbeat_at
        assert worker.is_live(heartbeat_at + timedelta(seconds=59), timedelta(seconds=60))
        assert not worker.is_live(heartbeat_at + timedelta(seconds=60), timedelta(seconds=60))

    def test_columns_have_defaults_in_the_database(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status) "
                "VALUES ('q', 't', '[]', '{}', 'queued')"
            )
        job = Job.objects.get()
        assert (job.priority, job.attempts, job.max_attempts, job.lease, job.locked_by) == (0, 0, 10, 0, "")
        assert (job.errors, job.metadata, job.result, job.last_error) == ([], {}, None, "")
        assert job.run_after == job.enqueued_at


class TestConstraints:
    def test_an_unknown_status_is_refused(self) -> None:
        with pytest.raises(IntegrityError, match=r"skipqueue_job_(status|finished)"):
            make_job("paused")

    def test_an_unfinished_job_has_no_finished_at(self, case: Case) -> None:
        for status in UNFINISHED:
            with case(status), pytest.raises(IntegrityError, match="skipqueue_job_finished"):
                make_job(status, finished_at=timedelta(0))

    def test_a_finished_job_has_a_finished_at(self, case: Case) -> None:
        for status in ("completed", "failed", "discarded"):
            with case(status), pytest.raises(IntegrityError, match="skipqueue_job_finished"):
                make_job(status, finished_at=None)

    def test_the_table_refuses_values_that_would_break_statements(self, case: Case) -> None:
        for change, name in {
            "priority = 101": "priority",
            "priority = -101": "priority",
            "run_after = 'infinity'": "run_after",
            "run_after = '-infinity'": "run_after",
            "run_after = '9999-01-01 00:00 UTC'": "run_after",
            "run_after = '0044-03-15 BC'": "run_after",
            "queue_name = repeat('ä', 501)": "names",
            "task = repeat('ä', 501)": "names",
            "errors = '{}'": "lists",
            "operations = '{}'": "lists",
            "operations = 'null'": "lists",
        }.items():
            with case(change=change, name=name):
                job = make_job()
                with pytest.raises(IntegrityError, match=f"skipqueue_job_{name}"), connection.cursor() as cursor:
                    cursor.execute(f"UPDATE skipqueue_job SET {change} WHERE id = %s", [job.pk])

    def test_the_table_accepts_values_just_within_the_bounds(self, case: Case) -> None:
        for change in ("priority = 100", "priority = -100", "run_after = '9998-12-31'"):
            with case(change):
                job = make_job()
                with connection.cursor() as cursor:
                    cursor.execute(f"UPDATE skipqueue_job SET {change} WHERE id = %s", [job.pk])
                job.refresh_from_db()

    def test_only_one_unfinished_job_has_a_unique_key(self, case: Case) -> None:
        for first_status, second_status in product(UNFINISHED, UNFINISHED):
            with case(first_status=first_status, second_status=second_status):
                make_job(first_status, unique_key="k")
                with pytest.raises(IntegrityError, match="skipqueue_job_unique"):
                    make_job(second_status, unique_key="k")

"""The sentences on a job's page that explain why the job waits, or why it was not retried."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_skipqueue import job as register
from django_skipqueue.console import counts
from django_skipqueue.console.admin.jobs.attempts import attempts_of
from django_skipqueue.console.admin.jobs.page import why_it_waits, why_it_was_not_retried
from django_skipqueue.console.queues_and_workers import Workforce
from django_skipqueue.models import Job, Queue, RateBucket

from ....app.rows import make_job, make_worker
from ..scene import seconds_ago
from .test_attempts import make_failure, make_operation

pytestmark = pytest.mark.django_db


def why_job_waits(job: Job) -> str:
    """Return the sentence that explains why the job waits now."""
    return why_it_waits(job, timezone.now(), Workforce.now())


class TestQueued:
    def test_a_queued_job_without_a_worker(self) -> None:
        job = make_job(queue_name="mail")
        assert why_job_waits(job) == "It waits for a worker, but no worker is alive."
        make_worker(queues=["default"])
        assert why_job_waits(job) == "It waits for a worker, but no live worker serves the queue “mail”."

    def test_a_job_of_a_paused_queue(self) -> None:
        job = make_job(queue_name="mail")
        make_worker()
        Queue.pause("mail")
        assert why_job_waits(job) == "The queue “mail” is paused until it is resumed."
        Queue.pause("mail", by="ann", reason="no answer")
        assert why_job_waits(job) == "The queue “mail” is paused by ann until it is resumed: no answer"
        Queue.pause("mail", for_=timedelta(hours=1))
        assert re.fullmatch(r"The queue “mail” is paused until \d{4}-\d\d-\d\d \d\d:\d\d \w+\.", why_job_waits(job))
        Queue.pause("mail", for_=timedelta(hours=1), by="ann")
        assert why_job_waits(job).startswith("The queue “mail” is paused by ann until 2")
        Queue.resume("mail")
        assert why_job_waits(job).startswith("It is the next job")

    def test_the_explanation_counts_the_jobs_before_a_queued_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_worker()
        first = make_job(priority=5)
        make_job(queue_name="mail", priority=9)
        make_job("completed", priority=9)
        job = make_job(run_after=seconds_ago(5))
        make_job(run_after=seconds_ago(1))
        assert why_job_waits(first).startswith("It is the next job in the queue “default”")
        assert why_job_waits(job) == "1 job in the queue “default” comes before it."
        for _ in range(3):
            make_job(priority=1)
        assert why_job_waits(job) == "4 jobs in the queue “default” come before it."
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 2)
        assert why_job_waits(job) == "2+ jobs in the queue “default” come before it."

    def test_jobs_before_a_job_are_counted_by_the_claim_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 100)
        make_worker()
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status)"
                " SELECT 'default', 't', '[]', '{}', 'queued' FROM generate_series(1, 20000)"
            )
            cursor.execute("ANALYZE skipqueue_job")
        job = make_job()
        with CaptureQueriesContext(connection) as queries:
            assert why_job_waits(job).startswith("100+ jobs")
        (counting_statement,) = (query["sql"] for query in queries if "COUNT" in query["sql"])
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {counting_statement}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "using skipqueue_job_claim" in plan
        assert "Sort" not in plan


class TestScheduled:
    def test_a_job_that_is_scheduled_for_later(self) -> None:
        assert why_job_waits(make_job("scheduled")).startswith("Scheduled: due in 1 h, at ")

    def test_a_job_that_waits_for_its_next_attempt(self) -> None:
        job = make_job(
            "scheduled", attempts=2, errors=[make_failure(2, seconds_ago=1)], run_after=timedelta(seconds=90)
        )
        assert why_job_waits(job).startswith("Attempt 3 is due in ")

    def test_a_job_whose_task_the_worker_did_not_have(self) -> None:
        error = "UnknownTask: No task is registered as 'shop.jobs.old'."
        text = why_job_waits(make_job("scheduled", run_after=timedelta(seconds=6.9), last_error=error))
        assert text.startswith("The worker that claimed it does not know its task: ")
        assert re.search(r"The next try is due in [5-7] s, at ", text)

    def test_a_job_that_an_operator_postponed(self) -> None:
        job = make_job("scheduled", operations=[make_operation("postpone", seconds_ago=1)])
        assert why_job_waits(job).startswith("Postponed by ann: due in 1 h, at ")

    def test_a_scheduled_job_that_is_overdue(self) -> None:
        job = make_job("scheduled", run_after=seconds_ago(43))
        assert re.fullmatch(r"It was due [45]\d s ago, but no worker is alive\.", why_job_waits(job))
        make_worker()
        assert why_job_waits(job).startswith("It is due now")


class TestRunning:
    def test_a_running_job_whose_worker_is_late_with_its_heartbeat(self) -> None:
        live, late = make_worker(), make_worker(name="web-1/1", heartbeat=seconds_ago(44))
        assert (
            why_job_waits(make_job("running", locked_by=live.pk))
            == why_job_waits(make_job("running", locked_by="by hand"))
            == ""
        )
        text = why_job_waits(make_job("running", locked_by=late.pk))
        assert text.startswith("Its worker web-1/1 has sent no heartbeat for 4")
        assert text.endswith("After 1 min, the job is recovered.")


class Blocked(Exception):
    """Not worth another attempt."""


def mail() -> None:
    """Send a mail."""


def sort() -> None:
    """Sort the post."""


class TestNotRetried:
    @pytest.fixture(autouse=True)
    def _tasks(self, registry: Any) -> None:
        register(name="mail", retry_on=(OSError,))(mail)
        register(name="sort", discard_on=(Blocked,))(sort)

    def why_not_retried(self, status: str = "failed", task: str = "mail", **fields: Any) -> str:
        """Return the sentence that explains why a job was not retried after the first of five attempts."""
        failure = make_failure(1, seconds_ago=0, worker="w") | fields.pop("failure", {})
        columns: dict[str, Any] = {
            "attempts": 1,
            "max_attempts": 5,
            "errors": [failure],
            "last_error": "Blocked: no",
        } | fields
        job = make_job(status, task=task, **columns)
        return why_it_was_not_retried(job, attempts_of(job))

    def test_no_retry_after_the_last_attempt(self) -> None:
        assert self.why_not_retried(max_attempts=1) == "Not retried: only one attempt was allowed."
        entry = make_failure(3, seconds_ago=0, worker="w")
        assert (
            self.why_not_retried(attempts=3, max_attempts=3, errors=[entry])
            == "Not retried: that was the last of 3 attempts."
        )

    def test_no_retry_for_an_exception_that_is_not_in_retry_on(self) -> None:
        assert (
            self.why_not_retried(failure={"exception": "shop.Blocked"})
            == "Not retried: Blocked is not in the task's retry_on."
        )

    def test_no_retry_of_a_job_that_its_task_discarded(self) -> None:
        entry = {"exception": "django_skipqueue.Discard"}
        assert self.why_not_retried("discarded", failure=entry) == "Not retried: the task itself discarded its job."
        text = self.why_not_retried("discarded", task="sort", failure={"exception": "shop.Blocked"})
        assert text == "Not retried: Blocked is in the task's discard_on."

    @pytest.mark.parametrize(
        "entry",
        [
            {"exception": "builtins.OSError"},  # OSError is in `retry_on`, so the code has changed since
            {"exception": "django_skipqueue.exceptions.WorkerDied"},
            {"exception": "django_skipqueue.exceptions.UnstorableResult"},
            {"exception": "django_skipqueue.exceptions.UnknownTask"},
            {"exception": "django.db.utils.DataError", "worker": ""},  # PostgreSQL refused the outcome
        ],
    )
    def test_no_reason_is_given_if_none_is_known(self, entry: dict[str, Any]) -> None:
        assert self.why_not_retried(failure=entry) == ""

    def test_there_is_no_reason_for_a_job_of_an_unknown_task(self) -> None:
        assert self.why_not_retried(task="elsewhere") == self.why_not_retried("discarded", task="elsewhere") == ""

    def test_there_is_no_reason_for_a_job_that_an_operator_ended(self) -> None:
        assert self.why_not_retried("discarded", operations=[make_operation("discard", seconds_ago=-1)]) == ""
        assert self.why_not_retried("completed", errors=[], started_at=seconds_ago(1)) == ""


class TestBlocked:
    def test_a_job_blocked_by_a_concurrency_limit(self) -> None:
        columns: dict[str, Any] = {"limit_key": 'limit:t account="a"', "limit_kind": "concurrency", "capacity": 2}
        make_job("queued", **columns)
        make_job("running", **columns)
        first, job = (make_job("blocked", **columns) for _ in range(2))
        explanation = 'It waits for a permit of its key “limit:t account="a"”: 2 of 2 are taken.'
        explanation += " Of these, jobs waiting for a worker: 1 in “default”."
        assert why_job_waits(first) == explanation
        assert why_job_waits(job) == f"{explanation} 1 job comes before it."

    def test_a_job_blocked_by_the_limit_of_its_queue(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"QUEUES": {"default": {"concurrency": 2}}}
        columns: dict[str, Any] = {"limit_key": "queue:default", "limit_kind": "concurrency", "capacity": 2}
        make_job("running", **columns)
        job = make_job("blocked", **columns)
        assert why_job_waits(job) == "It waits for a permit of its key “queue:default”: 1 of 2 are taken."
        Queue.limit("default", 1)
        job = make_job("blocked", **columns)
        assert "1 of 1 are taken" in why_job_waits(job)
        Queue.limit("default", None)
        job = make_job("blocked", **columns)
        assert why_job_waits(job) == "It will be admitted within a second or two, because its queue has no limit."

    def test_a_job_blocked_by_a_fair_limit(self) -> None:
        columns: dict[str, Any] = {"limit_key": 'fair:t tenant="a"', "limit_kind": "fair", "capacity": 2}
        make_job("queued", **columns)
        make_job("running", **columns)
        assert why_job_waits(make_job("blocked", **columns)) == (
            'It waits for its turn: 1 jobs of its key “fair:t tenant="a"” are queued already, and more would delay the '
            "jobs of other keys."
        )

    def test_a_job_blocked_by_a_sequence(self) -> None:
        columns: dict[str, Any] = {"limit_key": "sequence:t", "limit_kind": "halting", "capacity": 1}
        running_job, job = make_job("running", **columns), make_job("blocked", **columns)
        assert (
            why_job_waits(job) == f"It waits for job {running_job.pk} of its sequence “sequence:t”, which is running."
        )
        Job.objects.filter(pk=running_job.pk).delete()
        assert why_job_waits(job) == (
            "It is next in its sequence “sequence:t”, and will be admitted within a second or two."
        )
        failed_job = make_job("failed", **columns)
        assert why_job_waits(job) == (
            f"Its sequence “sequence:t” has halted because job {failed_job.pk} failed. Retry or discard that job."
        )

    def test_a_secret_in_the_key_of_a_limit_is_masked(self) -> None:
        columns: dict[str, Any] = {"limit_key": 'limit:t token="hush-hush"', "limit_kind": "concurrency", "capacity": 1}
        job = make_job("blocked", kwargs={"token": "hush-hush"}, **columns)
        assert "hush" not in why_job_waits(job)

    def test_a_job_blocked_by_a_rate(self) -> None:
        columns: dict[str, Any] = {"rate_key": "rate:t tenant=7", "rate_interval": 0.6, "rate_burst": 1}
        first, second, third = (make_job("blocked", **columns) for _ in range(3))
        assert why_job_waits(first) == "It waits for the rate 100/m of “rate:t tenant=7”: about 0 s."
        RateBucket.objects.create(key="rate:t tenant=7", full_at=timezone.now() + timedelta(hours=2))
        Job.objects.update(rate_interval=600.0)
        first, second, third = Job.objects.order_by("id")
        assert why_job_waits(first) == "It waits for the rate 6/h of “rate:t tenant=7”: about 10 min."
        assert (
            why_job_waits(second)
            == "It waits for the rate 6/h of “rate:t tenant=7”: about 20 min. 1 job comes before it."
        )
        assert (
            why_job_waits(third)
            == "It waits for the rate 6/h of “rate:t tenant=7”: about 30 min. 2 jobs come before it."
        )

    def test_a_job_blocked_by_a_rate_behind_more_jobs_than_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counts, "MOST_JOBS_COUNTED", 1)
        columns: dict[str, Any] = {"rate_key": "rate:t", "rate_interval": 600.0, "rate_burst": 1}
        job = [make_job("blocked", **columns) for _ in range(4)][-1]
        assert why_job_waits(job) == "It waits for the rate 6/h of “rate:t”: over 20 min. 1+ jobs come before it."

    def test_a_job_blocked_by_a_limit_and_then_by_a_rate(self) -> None:
        limit_columns: dict[str, Any] = {"limit_key": "limit:t", "limit_kind": "concurrency", "capacity": 1}
        rate_columns: dict[str, Any] = {"rate_key": "rate:t", "rate_interval": 0.6, "rate_burst": 1}
        first = make_job("blocked", gate="rate", **limit_columns, **rate_columns)
        second = make_job("blocked", **limit_columns, **rate_columns)
        assert why_job_waits(first).startswith("It waits for the rate 100/m")
        assert why_job_waits(second) == "It waits for a permit of its key “limit:t”: 1 of 1 are taken."

    def test_a_secret_in_the_key_of_a_rate_is_masked(self) -> None:
        columns: dict[str, Any] = {"rate_key": 'rate:t token="hush-hush"', "rate_interval": 0.6, "rate_burst": 1}
        job = make_job("blocked", kwargs={"token": "hush-hush"}, **columns)
        assert "hush" not in why_job_waits(job)

    def test_a_blocked_job_without_a_known_gate(self) -> None:
        assert why_job_waits(make_job("blocked")) == "It is due, and waits for a limit or another job."

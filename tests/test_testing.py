"""`testing.run_jobs`: for projects' tests, inside the transaction of a TestCase."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import TestCase

from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs

from .app import jobs, worker_jobs
from .app.models import Ledger


class RunJobsTests(TestCase):
    """As a project would write them: rolled back at the end of each test."""

    def test_what_was_deferred_is_run_and_returned(self) -> None:
        jobs.add.defer(1, 2)
        jobs.aadd.defer(3, 4)
        ran = run_jobs()
        assert [(job.status, job.result) for job in ran] == [("completed", 3), ("completed", 7)]
        assert connection.in_atomic_block
        assert run_jobs() == []

    def test_nothing_is_left_of_the_other_tests(self) -> None:
        assert not Job.objects.exists()

    def test_queries_of_tasks_see_and_join_the_tests_transaction(self) -> None:
        jobs.record.defer(entry="sync")
        jobs.arecord.defer(entry="async")
        run_jobs()
        assert set(Ledger.objects.values_list("entry", flat=True)) == {"sync", "async"}

    def test_retries_that_are_due_at_once_are_run_too_and_each_job_is_returned_once(self) -> None:
        jobs.fail_times.defer(2)
        jobs.fail.defer()
        ran = run_jobs()
        assert [(job.status, job.attempts) for job in ran] == [("completed", 3), ("failed", 3)]

    def test_scheduled_jobs_wait_unless_they_are_forced(self) -> None:
        jobs.ask_for_retry.defer(3600)
        assert [job.status for job in run_jobs()] == ["scheduled"]
        assert run_jobs() == []
        (job,) = run_jobs(due_by_force=True)
        assert (job.status, job.attempts) == ("failed", 3)

    def test_what_is_forced_becomes_due_by_the_verb_of_operators(self) -> None:
        """And so passes the gates, as in production; its row is none that a worker would never see."""
        jobs.noop.using(run_after=timedelta(hours=1)).defer()
        (job,) = run_jobs(due_by_force=True)
        assert job.started_at is not None
        assert job.run_after <= job.started_at
        assert [(each["verb"], each["by"]) for each in job.operations or []] == [("run_now", "run_jobs")]

    def test_only_the_queues_named_are_served_in_their_order(self) -> None:
        for queue_name in ("a", "b", "c"):
            jobs.noop.using(queue_name=queue_name).defer()
        assert [job.queue_name for job in run_jobs(queue_names=["c", "a"])] == ["c", "a"]
        assert Job.objects.queued().get().queue_name == "b"

    def test_jobs_that_defer_each_other_for_ever_end_the_test(self) -> None:
        jobs.snooze.defer(0)
        with pytest.raises(RuntimeError, match="5 attempts"):
            run_jobs(limit=5)
        job = Job.objects.get()
        assert (job.status, job.attempts) == ("queued", 0)

    def test_errors_fail_the_job_and_not_the_test(self) -> None:
        jobs.return_unstorable.defer("nan")
        jobs.raise_unstorable.defer()
        worker_jobs.raise_base_exception.defer("SystemExit")
        Job.objects.enqueue("no.such.task")
        assert [job.status for job in run_jobs()] == ["failed", "failed", "failed", "scheduled"]

    def test_a_backoff_beyond_all_years_breaks_neither_the_job_nor_the_test(self) -> None:
        Job.objects.enqueue("backoff.inf")
        jobs.noop.defer()
        assert [job.status for job in run_jobs()] == ["scheduled", "completed"]

    def test_a_task_whose_query_failed_in_its_own_block_does_not_break_the_tests_transaction(self) -> None:
        with transaction.atomic():
            jobs.noop.defer()
        run_jobs()
        assert Job.objects.completed().count() == 1


@pytest.mark.django_db(transaction=True)
def test_it_works_without_a_transaction_too() -> None:
    jobs.add.defer(1, 1)
    assert [job.result for job in run_jobs()] == [2]

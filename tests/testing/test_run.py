"""`testing.run_jobs`, which the tests of projects call, also in the transaction of a TestCase."""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.dispatch import Signal
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_skipqueue import Batch, periodic, signals
from django_skipqueue.exceptions import UnknownTask
from django_skipqueue.models import Job
from django_skipqueue.testing import arun_jobs, assert_deferred, capture_deferred, run_inline, run_jobs
from django_skipqueue.values.notes import logs_of

from ..app import jobs, sessions, worker_jobs
from ..app.models import Ledger
from ..app.rates.jobs import shares_rate
from ..parts.schedules.rows import without_entries
from . import jobs as tasks


def log_messages_of(job: Job) -> list[str]:
    return [line.message for log in logs_of(job.logs) for line in log.lines]


class RunJobsTests(TestCase):
    """Tests as a project would write them. Each test is rolled back at its end."""

    def test_run_jobs_runs_the_deferred_jobs_and_returns_them(self) -> None:
        jobs.add.defer(1, 2)
        jobs.aadd.defer(3, 4)
        jobs_run = run_jobs()
        assert [(job.status, job.result) for job in jobs_run] == [("completed", 3), ("completed", 7)]
        assert connection.in_atomic_block
        assert run_jobs() == []

    def test_the_jobs_of_the_other_tests_were_rolled_back(self) -> None:
        assert not Job.objects.exists()

    def test_queries_of_tasks_see_and_join_the_tests_transaction(self) -> None:
        jobs.record.defer(entry="sync")
        jobs.arecord.defer(entry="async")
        run_jobs()
        assert set(Ledger.objects.values_list("entry", flat=True)) == {"sync", "async"}

    def test_retries_due_at_once_are_run_too_and_each_job_is_returned_once(self) -> None:
        jobs.fail_times.defer(2)
        jobs.fail.defer()
        jobs_run = run_jobs()
        assert [(job.status, job.attempts) for job in jobs_run] == [("completed", 3), ("failed", 3)]

    def test_log_records_of_a_task_are_stored_once_with_its_job(self) -> None:
        handlers_before = list(logging.getLogger().handlers)
        tasks.warn.defer("outer", within="inner")
        tasks.awarn.defer("async")
        run_jobs()
        assert {job.args[0]: log_messages_of(job) for job in Job.objects.all()} == {
            "outer": ["outer", "outer is done"],
            "inner": ["inner", "inner is done"],
            "async": ["async"],
        }
        assert logging.getLogger().handlers == handlers_before

    def test_log_records_from_outside_of_a_job_are_not_stored(self) -> None:
        jobs.noop.defer()
        with run_inline():
            logging.getLogger("shop").warning("outside")
            jobs.noop.defer()
        assert [log_messages_of(job) for job in Job.objects.all()] == [[], []]

    @override_settings(SKIPQUEUE={"CAPTURE_LOGS": None})
    def test_no_log_records_are_stored_if_capture_logs_is_off(self) -> None:
        tasks.warn.defer("a")
        assert [log_messages_of(job) for job in run_jobs()] == [[]]

    def test_scheduled_jobs_run_only_with_include_scheduled(self) -> None:
        jobs.ask_for_retry.defer(3600)
        assert [job.status for job in run_jobs()] == ["scheduled"]
        assert run_jobs() == []
        (job,) = run_jobs(include_scheduled=True)
        assert (job.status, job.attempts) == ("failed", 3)

    def test_include_scheduled_makes_a_job_due_by_run_now(self) -> None:
        """Then limits and sequences apply to the job as in production."""
        jobs.noop.using(run_after=timedelta(hours=1)).defer()
        (job,) = run_jobs(include_scheduled=True)
        assert job.started_at is not None
        assert job.run_after <= job.started_at
        assert [(record["verb"], record["by"]) for record in job.operations or []] == [("run_now", "run_jobs")]

    def test_run_jobs_serves_only_the_named_queues_in_this_order(self) -> None:
        for queue_name in ("a", "b", "c"):
            jobs.noop.using(queue_name=queue_name).defer()
        assert [job.queue_name for job in run_jobs(queue_names=["c", "a"])] == ["c", "a"]
        assert Job.objects.queued().get().queue_name == "b"

    def test_run_jobs_raises_an_error_after_its_limit_of_attempts(self) -> None:
        jobs.snooze.defer(0)
        with pytest.raises(RuntimeError, match="5 attempts"):
            run_jobs(limit=5)
        job = Job.objects.get()
        assert (job.status, job.attempts) == ("queued", 0)

    def test_errors_of_tasks_fail_their_jobs_and_are_not_raised(self) -> None:
        jobs.return_unstorable.defer("nan")
        jobs.raise_unstorable.defer()
        worker_jobs.raise_base_exception.defer("SystemExit")
        Job.objects.enqueue("no.such.task")
        assert [job.status for job in run_jobs()] == ["failed", "failed", "failed", "scheduled"]

    def test_an_infinite_backoff_schedules_the_job_and_does_not_end_run_jobs(self) -> None:
        Job.objects.enqueue("backoff.inf")
        jobs.noop.defer()
        assert [job.status for job in run_jobs()] == ["scheduled", "completed"]

    def test_a_failed_query_in_a_task_keeps_the_tests_transaction(self) -> None:
        with transaction.atomic():
            jobs.noop.defer()
        run_jobs()
        assert Job.objects.completed().count() == 1


@pytest.mark.django_db
def test_run_jobs_runs_jobs_of_queues_that_celery_serves(settings: Any) -> None:
    """In a test there is no relay that would pass the jobs to Celery."""
    settings.SKIPQUEUE = {"CARRIERS": {"celery": {"APP": "shop.celery.app", "QUEUES": {"pdf": "pdf"}}}}
    jobs.add.using(queue_name="pdf").defer(1, 2)
    assert [job.result for job in run_jobs()] == [3]


@pytest.mark.django_db(transaction=True)
def test_run_jobs_works_without_a_transaction() -> None:
    jobs.add.defer(1, 1)
    assert [job.result for job in run_jobs()] == [2]


class TestWithinATransaction(TestCase):
    """Tasks that rely on a worker's autocommit, run in the transaction of a `TestCase`."""

    def test_an_error_of_the_database_fails_the_job_and_not_the_transaction_of_the_test(self) -> None:
        tasks.break_the_transaction.defer()
        tasks.note.defer("after")
        assert [(job.status, job.attempts) for job in run_jobs()] == [("failed", 2), ("completed", 1)]
        assert "IntegrityError" in Job.objects.failed().get().last_error
        assert tasks.entries() == ["after"], "the whole attempt is rolled back, as the documentation says"

    def test_a_database_error_that_the_task_catches_does_not_break_the_transaction(self) -> None:
        tasks.break_the_transaction_and_go_on.defer()
        assert [job.status for job in run_jobs()] == ["completed"]
        assert Job.objects.count() == 1

    def test_commit_hooks_of_a_task_are_called_once(self) -> None:
        for task in (tasks.write_on_commit, tasks.awrite_on_commit):
            with self.captureOnCommitCallbacks(execute=True):
                task.defer(task.__name__)
                assert len(run_jobs()) == 2
            assert run_jobs() == []
        assert tasks.entries() == ["write_on_commit", "awrite_on_commit"]

    def test_commit_hooks_of_an_attempt_that_was_rolled_back_are_never_called(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            tasks.break_the_transaction.defer()
            run_jobs()
        assert run_jobs() == []
        assert tasks.entries() == []

    def test_run_jobs_does_not_call_the_commit_hooks_of_the_test_itself(self) -> None:
        hooks_called: list[int] = []
        transaction.on_commit(lambda: hooks_called.append(1))
        tasks.write_on_commit.defer("entry")
        run_jobs()
        assert not hooks_called
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: hooks_called.append(2))
            jobs.noop.defer()
            run_jobs()
        assert hooks_called == [2]

    def test_a_commit_hook_that_raises_fails_the_attempt_as_in_a_worker(self) -> None:
        tasks.fail_on_commit.defer()
        [job] = run_jobs()
        assert (job.status, job.last_error) == ("failed", "ValueError: in the hook")

    def test_the_outcome_of_a_job_that_completed_itself_in_its_transaction_counts(self) -> None:
        tasks.write_atomically.defer("atomic")
        tasks.complete_within.defer("by hand")
        assert [(job.status, job.result) for job in run_jobs()][:2] == [
            ("completed", "atomic"),
            ("completed", "by hand"),
        ]
        assert tasks.entries() == ["atomic", "by hand"]

    def test_the_callback_of_a_batch_runs_after_its_last_job(self) -> None:
        """In a worker, the callback is enqueued after the commit of the last outcome."""
        with Batch(on_success=tasks.note.s("success"), on_failure=tasks.note.s("failure")):
            jobs.add.defer(1)
            tasks.write_atomically.defer("atomic")
        run_jobs()
        assert tasks.entries() == ["atomic", "success"]
        assert run_jobs() == []

    def test_a_job_runs_after_the_job_that_it_waits_for(self) -> None:
        first_job = tasks.note.using(run_after=timedelta(hours=1)).defer("first")
        tasks.note.using(after=[first_job]).defer("second")
        assert run_jobs() == []
        run_jobs(include_scheduled=True)
        assert tasks.entries() == ["first", "second"]


class TestScheduledJobs(TestCase):
    """The options `until` and `include_scheduled`, and jobs that become due."""

    def defer_for(self, **delay: float) -> Job:
        return tasks.note.using(run_after=timedelta(**delay)).defer(str(delay))

    def test_jobs_due_until_a_time_run_in_the_order_of_their_times(self) -> None:
        later_job, earlier_job = self.defer_for(minutes=50), self.defer_for(minutes=10)
        job_after_the_hour = self.defer_for(hours=2)
        assert [job.pk for job in run_jobs(until=timedelta(hours=1))] == [earlier_job.pk, later_job.pk]
        job_after_the_hour.refresh_from_db()
        assert job_after_the_hour.status == "scheduled"
        assert [job.pk for job in run_jobs(until=job_after_the_hour.run_after)] == [job_after_the_hour.pk]

    def test_a_snooze_counts_from_the_time_at_which_its_job_was_due(self) -> None:
        """The job runs three times in an hour: at once, after 20 minutes and after 40 minutes."""
        jobs.snooze.defer(after=1200)
        with pytest.raises(RuntimeError, match="2 attempts"):
            run_jobs(until=timedelta(hours=1), limit=2)
        Job.objects.all().delete()
        jobs.snooze.defer(after=1200)
        assert [job.status for job in run_jobs(until=timedelta(hours=1), limit=3)] == ["scheduled"]

    def test_a_job_deferred_by_another_job_runs_in_the_order_of_its_due_time(self) -> None:
        tasks.note_again.using(run_after=timedelta(minutes=10)).defer("again", minutes=20)
        for minutes in (25, 35):
            tasks.note.using(run_after=timedelta(minutes=minutes)).defer(str(minutes))
        run_jobs(include_scheduled=True)
        assert tasks.entries() == ["again", "25", "30 at last", "35"]

    def test_a_scheduled_job_that_has_become_due_is_run(self) -> None:
        """In production, a supervisor would change its status from scheduled to queued."""
        job = self.defer_for(hours=1)
        Job.objects.filter(pk=job.pk).update(run_after=job.enqueued_at - timedelta(seconds=1))
        assert [job_run.pk for job_run in run_jobs()] == [job.pk]

    def test_include_scheduled_applies_only_to_the_named_queues(self) -> None:
        jobs.noop.using(queue_name="a", run_after=timedelta(hours=1)).defer()
        jobs.noop.using(queue_name="b", run_after=timedelta(hours=1)).defer()
        assert [job.queue_name for job in run_jobs(queue_names=["a"], include_scheduled=True)] == ["a"]
        assert Job.objects.scheduled().get().queue_name == "b"


class TestRates(TestCase):
    """The option `until`, with a rate limit of one job per hour."""

    def test_jobs_of_a_rate_run_as_far_as_the_rate_allows_until_the_time(self) -> None:
        shares_rate.defer_many([()] * 6)
        assert len(run_jobs()) == 1
        assert len(run_jobs(until=timedelta(hours=2.5))) == 2
        tasks.note.using(run_after=timedelta(hours=1.5)).defer("between")
        assert [job.task for job in run_jobs(until=timedelta(hours=2.5))] == [
            shares_rate.name,
            tasks.note.name,
            shares_rate.name,
        ]
        assert len(run_jobs(include_scheduled=True)) == 1

    def test_run_jobs_ends_if_only_jobs_of_other_queues_wait_for_the_rate(self) -> None:
        shares_rate.using(queue_name="other").defer_many([()] * 2)
        assert run_jobs(queue_names=["default"], until=timedelta(days=1)) == []


class TestSchedules(TestCase):
    """The option `schedules`."""

    def setUp(self) -> None:
        self.enterContext(without_entries())

    def test_schedules_enqueue_jobs_at_their_times_with_schedules_true(self) -> None:
        periodic(timedelta(hours=5))(jobs.noop)
        periodic("0 12 * * *", timezone="UTC", entry="noon")(tasks.note)
        assert run_jobs(until=timedelta(days=1)) == []
        jobs_run = run_jobs(until=timedelta(days=1), schedules=True)
        assert Counter(job.task for job in jobs_run) == {jobs.noop.name: 4, tasks.note.name: 1}
        [noon_job] = [job for job in jobs_run if job.task == tasks.note.name]
        assert (noon_job.metadata["schedule"]["cron"], noon_job.metadata["schedule"]["planned_at"][10:16]) == (
            "0 12 * * *",
            "T12:00",
        )
        planned_times = [job.metadata["schedule"]["planned_at"] for job in jobs_run]
        assert planned_times == sorted(planned_times)

    def test_only_schedules_of_the_given_tasks_enqueue_jobs(self) -> None:
        periodic(timedelta(hours=5))(jobs.noop)
        periodic(timedelta(hours=7), entry="seven")(tasks.note)
        assert len(run_jobs(until=timedelta(days=1), schedules=[tasks.note])) == 3
        with pytest.raises(ValueError, match=r"jobs\.add has no schedule. Put @periodic above"):
            run_jobs(until=timedelta(days=1), schedules=[jobs.add])
        with pytest.raises(ValueError, match="schedules needs until"):
            run_jobs(schedules=True)

    def test_a_schedule_that_skips_overlapping_jobs_waits_for_its_last_job(self) -> None:
        periodic(timedelta(hours=5), name="skips", overlap="skip", after=11 * 3600)(jobs.snooze)
        periodic(timedelta(hours=5), name="allows", after=11 * 3600)(jobs.snooze)
        run_jobs(until=timedelta(hours=17), schedules=True)
        assert Counter(job.metadata["schedule"]["name"] for job in Job.objects.all()) == {"skips": 1, "allows": 3}


class TestErrors(TestCase):
    """The option `raise_errors`, and exceptions that do not come from a task."""

    def test_the_first_exception_of_a_task_is_raised_after_its_outcome_is_saved(self) -> None:
        jobs.fail.defer("boom")
        with pytest.raises(ValueError, match="boom"):
            run_jobs(raise_errors=True)
        job = Job.objects.get()
        assert (job.status, job.attempts, job.last_error) == ("queued", 1, "ValueError: boom")

    def test_snooze_discard_and_retry_are_not_raised(self) -> None:
        jobs.snooze.defer()
        jobs.discard.defer()
        jobs.ask_for_retry.using(max_attempts=1).defer()
        assert [job.status for job in run_jobs(raise_errors=True)] == ["scheduled", "discarded", "failed"]

    def test_the_error_for_an_unregistered_task_is_raised_too(self) -> None:
        Job.objects.enqueue("no.such.task")
        with pytest.raises(UnknownTask, match=r"No task is registered as 'no\.such\.task'"):
            run_jobs(raise_errors=True)

    def test_a_keyboard_interrupt_of_a_task_is_raised(self) -> None:
        worker_jobs.raise_base_exception.defer("KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            run_jobs()
        assert Job.objects.get().attempts == 1


def test_run_jobs_sends_the_signals_of_each_outcome(
    db: None, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    completions, retries, failures, discards = map(
        record_signal, (signals.job_completed, signals.job_retrying, signals.job_failed, signals.job_discarded)
    )
    jobs.add.defer(1, 2)
    tasks.write_atomically.defer("entry")
    jobs.fail.using(max_attempts=2).defer("boom")
    jobs.discard.defer()
    run_jobs()
    assert [event["sender"] for event in completions] == [jobs.add.name, tasks.write_atomically.name, tasks.note.name]
    assert [event["attempt"].outcome.last_error for event in (*retries, *failures)] == ["ValueError: boom"] * 2
    assert len(discards) == 1


class TestAnotherDatabase(TestCase):
    databases = {"default", "other"}

    def test_run_jobs_runs_the_jobs_of_the_named_database(self) -> None:
        jobs.add.using(database="other").defer(1, 2)
        assert run_jobs() == []
        assert [job.result for job in run_jobs(database="other")] == [3]


class TestAsync(TestCase):
    async def test_arun_jobs_runs_async_and_sync_tasks(self) -> None:
        await jobs.add.adefer(1, 2)
        await tasks.anote.adefer("entry")
        assert [job.status for job in await arun_jobs()] == ["completed", "completed"]
        assert await sync_to_async(tasks.entries)() == ["entry"]

    async def test_the_error_of_run_jobs_in_async_code_names_arun_jobs(self) -> None:
        with pytest.raises(SynchronousOnlyOperation, match=r"await arun_jobs\(\)"):
            run_jobs()


class TestWithoutADatabase(SimpleTestCase):
    def test_the_helpers_raise_djangos_error_in_a_test_without_a_database(self) -> None:
        for call in (run_jobs, lambda: assert_deferred(jobs.noop), capture_deferred().__enter__, jobs.noop.defer):
            # The error is pytest's, if an earlier test has closed the connection.
            with pytest.raises((AssertionError, RuntimeError), match=r"subclass TestCase or Trans|\"django_db\" mark"):
                call()


class TestWithoutATransaction(TransactionTestCase):
    """Every statement is committed, as in a worker."""

    def test_an_error_of_the_database_rolls_back_only_its_own_statement(self) -> None:
        tasks.break_the_transaction.using(max_attempts=1).defer()
        assert [job.status for job in run_jobs()] == ["failed"]
        assert tasks.entries() == ["before"]

    def test_run_jobs_does_not_run_a_job_that_another_session_has_locked(self) -> None:
        job = jobs.noop.using(run_after=timedelta(hours=1)).defer()
        with sessions.connect() as other_connection, other_connection.transaction():
            other_connection.execute("SELECT id FROM skipqueue_job WHERE id = %s FOR UPDATE", [job.pk])
            assert run_jobs(include_scheduled=True) == []
        assert len(run_jobs(include_scheduled=True)) == 1

    def test_commit_hooks_of_a_task_are_called_at_its_commit(self) -> None:
        tasks.write_on_commit.defer("entry")
        run_jobs()
        assert tasks.entries() == ["entry"]

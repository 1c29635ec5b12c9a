"""`testing.run_inline`: within its block each job runs at once when it is deferred, in the process of the test."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase

from django_skipqueue import Batch
from django_skipqueue.events.sinks import SINKS
from django_skipqueue.exceptions import InvalidArguments
from django_skipqueue.models import Job
from django_skipqueue.testing import run_inline, run_jobs

from ..app import jobs
from . import jobs as tasks


class TestInATestCase(TestCase):
    databases = {"default", "other"}

    def test_a_job_has_run_when_defer_returns(self) -> None:
        with run_inline() as jobs_run:
            job = tasks.note.defer("entry")
            assert tasks.entries() == ["entry"]
            assert [(job_run.pk, job_run.status) for job_run in jobs_run] == [(job.pk, "completed")]
            tasks.note.defer_many([("a",), ("b",)])
            assert tasks.entries() == ["entry", "a", "b"]

    def test_a_job_runs_after_the_outermost_transaction_in_which_it_was_deferred(self) -> None:
        with run_inline():
            with transaction.atomic():
                with transaction.atomic():
                    tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry"]

    def test_the_jobs_of_a_batch_and_its_callback_run_at_the_end_of_the_batch(self) -> None:
        with run_inline():
            with Batch(on_finish=tasks.note.s("over")):
                tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry", "over"]

    def test_a_job_of_a_transaction_without_a_savepoint_runs_at_the_end_of_the_block(self) -> None:
        with run_inline():
            with transaction.atomic(savepoint=False):
                tasks.note.defer("entry")
            assert tasks.entries() == []
        assert tasks.entries() == ["entry"]

    def test_a_job_that_was_rolled_back_is_not_run(self) -> None:
        with run_inline() as jobs_run:
            with transaction.atomic():
                tasks.note.defer("entry")
                transaction.set_rollback(True)
            tasks.note.defer("other")
        assert tasks.entries() == ["other"]
        assert len(jobs_run) == 1

    def test_a_job_that_another_job_defers_runs_after_it(self) -> None:
        with run_inline() as jobs_run:
            tasks.write_atomically.defer("entry")
            assert [job_run.task for job_run in jobs_run] == [tasks.write_atomically.name, tasks.note.name]

    def test_the_error_of_a_task_makes_its_job_fail_and_is_not_raised(self) -> None:
        with run_inline() as jobs_run:
            tasks.break_the_transaction.defer()
            jobs.fail.using(max_attempts=1).defer()
        assert [job_run.status for job_run in jobs_run] == ["failed", "failed"]

    def test_with_raise_errors_the_error_of_a_task_is_raised_at_the_end_of_the_block(self) -> None:
        inline = run_inline(raise_errors=True)
        inline.__enter__()
        jobs.fail.defer("boom")
        with pytest.raises(ValueError, match="boom"):
            inline.__exit__(None, None, None)

    def test_an_error_of_the_block_itself_is_raised_rather_than_one_of_a_task(self) -> None:
        inline = run_inline(raise_errors=True)
        inline.__enter__()
        jobs.fail.defer("boom")
        inline.__exit__(KeyError, KeyError(), None)

    def test_run_inline_takes_include_scheduled_and_queue_names(self) -> None:
        with run_inline(include_scheduled=True):
            tasks.note.using(run_after=timedelta(hours=1)).defer("entry")
            assert tasks.entries() == ["entry"]
        with run_inline(queue_names=["other"]) as jobs_run:
            jobs.noop.defer()
        assert jobs_run == []

    def test_after_the_block_the_connection_and_the_sinks_are_as_before(self) -> None:
        connection = connections["default"]
        state_before = list(SINKS), set(vars(connection))
        with pytest.raises(InvalidArguments), run_inline(), run_inline(), transaction.atomic():
            jobs.echo.defer(object())
        assert (list(SINKS), set(vars(connection))) == state_before
        assert "savepoint_commit" not in vars(connection)
        jobs.noop.defer()
        assert [job.status for job in Job.objects.all()] == ["queued"]

    def test_only_jobs_of_the_named_database_run_at_once(self) -> None:
        with run_inline(database="other") as jobs_run:
            jobs.add.using(database="other").defer(1, 2)
            jobs.noop.defer()
        assert [job_run.result for job_run in jobs_run] == [3]
        assert len(run_jobs()) == 1


class TestInATransactionTestCase(TransactionTestCase):
    def test_a_job_runs_after_the_commit(self) -> None:
        with run_inline():
            with transaction.atomic():
                tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry"]

    def test_a_job_deferred_by_another_thread_runs_in_that_thread(self) -> None:
        """For example, the thread of a live server."""

        def defer() -> None:
            with transaction.atomic():
                tasks.note.defer("entry")
            entries_of_thread.append(tasks.entries())
            connections.close_all()

        entries_of_thread: list[list[str]] = []
        with run_inline(), transaction.atomic():
            thread = threading.Thread(target=defer)
            thread.start()
            thread.join()
        assert entries_of_thread == [["entry"]]


class TestAsync(TestCase):
    async def test_a_job_has_run_when_adefer_returns(self) -> None:
        async with run_inline() as jobs_run:
            await tasks.anote.adefer("entry")
            assert [job_run.status for job_run in jobs_run] == ["completed"]
            await jobs.add.adefer(1, 2)
            assert jobs_run[-1].result == 3

    async def test_a_sync_block_in_async_code_is_refused(self) -> None:
        with pytest.raises(SynchronousOnlyOperation, match="async with run_inline"):
            run_inline().__enter__()


def test_a_savepoint_commit_replaced_by_a_project_is_called_and_restored(db: Any) -> None:
    """`run_inline` replaces `connection.savepoint_commit` during its block. A project may have replaced it before."""
    savepoints_committed: list[str] = []
    connection = connections["default"]
    original_commit = connection.savepoint_commit

    def savepoint_commit(sid: str) -> None:
        savepoints_committed.append(sid)
        original_commit(sid)

    vars(connection)["savepoint_commit"] = savepoint_commit
    try:
        with run_inline(), transaction.atomic():
            jobs.noop.defer()
        assert savepoints_committed
        savepoints_committed.clear()
        with transaction.atomic():
            pass
        assert savepoints_committed
    finally:
        del vars(connection)["savepoint_commit"]

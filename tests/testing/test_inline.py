"""`testing.run_inline`: jobs run where they are deferred."""

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


class InATestCase(TestCase):
    databases = {"default", "other"}

    def test_a_job_has_run_when_defer_returns(self) -> None:
        with run_inline() as ran:
            job = tasks.note.defer("entry")
            assert tasks.entries() == ["entry"]
            assert [(one.pk, one.status) for one in ran] == [(job.pk, "completed")]
            tasks.note.defer_many([("a",), ("b",)])
            assert tasks.entries() == ["entry", "a", "b"]

    def test_it_runs_when_the_transaction_that_deferred_it_is_over(self) -> None:
        with run_inline():
            with transaction.atomic():
                with transaction.atomic():
                    tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry"]

    def test_a_batch_runs_at_the_end_of_its_block_and_calls_back(self) -> None:
        with run_inline():
            with Batch(on_finish=tasks.note.s("over")):
                tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry", "over"]

    def test_a_transaction_without_a_savepoint_ends_with_the_block_at_the_latest(self) -> None:
        with run_inline():
            with transaction.atomic(savepoint=False):
                tasks.note.defer("entry")
            assert tasks.entries() == []
        assert tasks.entries() == ["entry"]

    def test_what_was_rolled_back_is_not_run(self) -> None:
        with run_inline() as ran:
            with transaction.atomic():
                tasks.note.defer("entry")
                transaction.set_rollback(True)
            tasks.note.defer("other")
        assert tasks.entries() == ["other"]
        assert len(ran) == 1

    def test_jobs_that_a_job_defers_run_after_it(self) -> None:
        with run_inline() as ran:
            tasks.write_atomically.defer("entry")
            assert [one.task for one in ran] == [tasks.write_atomically.name, tasks.note.name]

    def test_the_error_of_a_task_is_its_outcome(self) -> None:
        with run_inline() as ran:
            tasks.break_the_transaction.defer()
            jobs.fail.using(max_attempts=1).defer()
        assert [one.status for one in ran] == ["failed", "failed"]

    def test_the_error_is_raised_at_the_end_if_it_is_asked_for(self) -> None:
        inline = run_inline(raise_errors=True)
        inline.__enter__()
        jobs.fail.defer("boom")
        with pytest.raises(ValueError, match="boom"):
            inline.__exit__(None, None, None)

    def test_an_error_of_the_block_is_not_hidden(self) -> None:
        inline = run_inline(raise_errors=True)
        inline.__enter__()
        jobs.fail.defer("boom")
        inline.__exit__(KeyError, KeyError(), None)

    def test_the_options_are_those_of_run_jobs(self) -> None:
        with run_inline(include_scheduled=True):
            tasks.note.using(run_after=timedelta(hours=1)).defer("entry")
            assert tasks.entries() == ["entry"]
        with run_inline(queue_names=["other"]) as ran:
            jobs.noop.defer()
        assert ran == []

    def test_nothing_is_left_behind(self) -> None:
        connection = connections["default"]
        before = list(SINKS), set(vars(connection))
        with pytest.raises(InvalidArguments), run_inline(), run_inline(), transaction.atomic():
            jobs.echo.defer(object())
        assert (list(SINKS), set(vars(connection))) == before
        assert "savepoint_commit" not in vars(connection)
        jobs.noop.defer()
        assert [one.status for one in Job.objects.all()] == ["queued"]

    def test_the_queue_of_another_database(self) -> None:
        with run_inline(database="other") as ran:
            jobs.add.using(database="other").defer(1, 2)
            jobs.noop.defer()
        assert [one.result for one in ran] == [3]
        assert len(run_jobs()) == 1


class Committed(TransactionTestCase):
    def test_a_job_runs_after_the_commit(self) -> None:
        with run_inline():
            with transaction.atomic():
                tasks.note.defer("entry")
                assert tasks.entries() == []
            assert tasks.entries() == ["entry"]

    def test_what_another_thread_defers_runs_there(self) -> None:
        """For example, the thread of a live server."""

        def defer() -> None:
            with transaction.atomic():
                tasks.note.defer("entry")
            seen.append(tasks.entries())
            connections.close_all()

        seen: list[list[str]] = []
        with run_inline(), transaction.atomic():
            thread = threading.Thread(target=defer)
            thread.start()
            thread.join()
        assert seen == [["entry"]]


class AsyncTests(TestCase):
    async def test_a_job_has_run_when_adefer_returns(self) -> None:
        async with run_inline() as ran:
            await tasks.anote.adefer("entry")
            assert [one.status for one in ran] == ["completed"]
            await jobs.add.adefer(1, 2)
            assert ran[-1].result == 3

    async def test_a_block_of_sync_code_is_refused(self) -> None:
        with pytest.raises(SynchronousOnlyOperation, match="async with run_inline"):
            run_inline().__enter__()


def test_the_decorators_of_a_project_may_wrap_what_it_replaces(db: Any) -> None:
    """A method that the project has set in place of the replaced method is there again afterwards."""
    called: list[str] = []
    connection = connections["default"]
    original = connection.savepoint_commit

    def savepoint_commit(sid: str) -> None:
        called.append(sid)
        original(sid)

    vars(connection)["savepoint_commit"] = savepoint_commit
    try:
        with run_inline(), transaction.atomic():
            jobs.noop.defer()
        assert called
        called.clear()
        with transaction.atomic():
            pass
        assert called
    finally:
        del vars(connection)["savepoint_commit"]

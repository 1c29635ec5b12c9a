"""Each clause of the statements that find, finish and prune batches: a test fails without the clause."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_skipqueue import Batch
from django_skipqueue.models import Job, JobBatch
from django_skipqueue.parts.batches.finish import (
    FinishResult,
    finish_batches,
    finish_open_batches,
    open_batches,
    prune_batches,
)
from django_skipqueue.parts.batches.values import BatchProgress
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs

from ...app import jobs
from ...app.rows import make_job
from ...app.sessions import Session
from .jobs import callbacks_of, counts_of
from .test_batch import (
    ALL_CALLBACKS,
    FAILURE_CALLBACK,
    FINISH_CALLBACK,
    SUCCESS_CALLBACK,
    age_batches,
    finish_and_list_batches,
    run_first_job,
)

store = Store("default")

pytestmark = pytest.mark.django_db


class TestChecks:
    def test_open_batches_come_in_the_order_of_their_ids(self) -> None:
        ids = []
        for number in range(4):
            with Batch() as batch:
                if number != 1:
                    jobs.noop.defer()
            ids.append(batch.id)
        assert open_batches(store) == [ids[0], *ids[2:]]
        assert open_batches(store, limit=1) == ids[:1]
        assert open_batches(store, after=ids[0], limit=1) == [ids[2]]

    def test_the_next_check_continues_after_the_last_batch(self) -> None:
        with Batch():
            jobs.noop.defer()
        with Batch() as second:
            job = jobs.noop.defer()
        assert job.discard()
        last_id, first_result = finish_open_batches(store, limit=1)
        _, second_result = finish_open_batches(store, after=last_id or 0, limit=1)
        assert (first_result.finished, second_result.finished) == (0, 1)
        assert [batch.pk for batch in JobBatch.objects.exclude(finished_at=None)] == [second.id]

    def test_the_outer_batch_is_finished_when_a_callback_of_its_inner_batch_ends(self) -> None:
        """The worker that settles the callback knows only the inner batch, which is finished."""
        with Batch(name="outer", **ALL_CALLBACKS), Batch(on_finish=jobs.noop) as inner:
            pass
        assert finish_batches(store, [inner.id]) == FinishResult()
        run_first_job()
        assert finish_batches(store, [inner.id]) == FinishResult(finished=1)
        assert callbacks_of("outer") == [SUCCESS_CALLBACK, FINISH_CALLBACK]

    def test_finishing_a_finished_batch_changes_nothing(self) -> None:
        with Batch(**ALL_CALLBACKS) as batch:
            pass
        row_before = batch.row
        assert finish_batches(store, [batch.id]) == FinishResult()
        assert batch.row.finished_at == row_before.finished_at
        assert callbacks_of() == [SUCCESS_CALLBACK, FINISH_CALLBACK]


@pytest.mark.parametrize("status", ["failed", "discarded"])
def test_a_callback_of_an_inner_batch_that_has_not_completed_is_a_failure(status: str) -> None:
    with Batch(name="outer", **ALL_CALLBACKS), Batch(on_finish=jobs.fail.using(max_attempts=1)):
        pass
    if status == "failed":
        run_first_job()
    else:
        assert Job.objects.queued().discard()
    assert len(finish_and_list_batches()) == 2
    assert callbacks_of("outer") == [FAILURE_CALLBACK, FINISH_CALLBACK]


class TestThreeLevels:
    def test_a_failed_callback_deep_inside_is_a_failure_of_all_outer_batches(self) -> None:
        fails = jobs.fail.using(max_attempts=1).s("callback")
        with Batch(name="1", **ALL_CALLBACKS), Batch(name="2", **ALL_CALLBACKS), Batch(name="3", on_finish=fails):
            pass
        run_jobs()
        assert [callbacks_of(name) for name in "12"] == [
            [FAILURE_CALLBACK, FINISH_CALLBACK],
            [FAILURE_CALLBACK, FINISH_CALLBACK],
        ]

    def test_a_pruned_failed_callback_deep_inside_is_a_failure_of_all_outer_batches(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"failed": 0}}
        fails = jobs.fail.using(max_attempts=1).s("callback")
        with Batch(name="1", **ALL_CALLBACKS):
            with Batch(name="2"), Batch(name="3", on_finish=fails):
                jobs.noop.defer()
            delayed_job = jobs.noop.using(run_after=timedelta(days=1)).defer()
        run_jobs()
        assert [batch.name for batch in finish_and_list_batches()] == ["2", "3"]
        assert store.prune() == {"failed": 1}
        assert delayed_job.run_now()
        run_jobs()
        assert callbacks_of("1") == [FAILURE_CALLBACK, FINISH_CALLBACK]
        assert counts_of(JobBatch.objects.get(name="1")) == (2, 0, 0)

    @pytest.mark.parametrize("levels", [1, 2])
    def test_a_failed_inner_job_that_is_retried_in_time_is_no_failure_of_the_outer_batch(self, levels: int) -> None:
        with Batch(name="outer", **ALL_CALLBACKS) as outer:
            delayed_job = jobs.noop.using(run_after=timedelta(days=1), priority=9).defer()
            with ExitStack() as inner:
                for level in range(levels):
                    inner.enter_context(Batch(name=f"inner {level}", on_finish=jobs.noop))
                jobs.noop.defer()
                failed_job = jobs.fail.using(max_attempts=1).defer()
        run_jobs()
        assert len(finish_and_list_batches()) == levels
        assert outer.progress() == BatchProgress(total=3, done=2, completed=1, failed=1, discarded=0, is_finished=False)
        failed_job.refresh_from_db()
        assert failed_job.retry()
        assert delayed_job.run_now()
        assert outer.progress().done == 1
        run_first_job()
        delayed_job.refresh_from_db()
        assert delayed_job.status == "completed"
        assert len(finish_and_list_batches()) == levels, "the outer batch waits for the job that runs again"
        Job.objects.filter(pk=failed_job.pk).update(task="tests.app.jobs.noop")
        run_jobs()
        assert callbacks_of("outer") == [SUCCESS_CALLBACK, FINISH_CALLBACK]
        assert counts_of(outer.row) == (3, 0, 0)
        assert outer.progress() == BatchProgress(total=3, done=3, completed=3, failed=0, discarded=0, is_finished=True)

    def test_the_innermost_batch_is_kept_while_the_outermost_batch_is_open(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 60, "failed": 60}}
        fails = jobs.fail.using(max_attempts=1).s("callback")
        with Batch(name="1", **ALL_CALLBACKS):
            with Batch(name="2"), Batch(name="3", on_finish=fails):
                pass
            delayed_job = jobs.noop.using(run_after=timedelta(days=1)).defer()
        run_jobs()
        assert [batch.name for batch in finish_and_list_batches()] == ["2", "3"]
        age_batches(timedelta(hours=1))
        assert prune_batches(store) == 0
        assert delayed_job.discard()
        assert len(finish_and_list_batches()) == 3
        assert callbacks_of("1") == [FAILURE_CALLBACK, FINISH_CALLBACK]
        run_jobs()
        Job.objects.failed().delete()
        age_batches(timedelta(hours=1))
        assert sum(prune_batches(store) for _ in range(3)) == 3


class TestPrune:
    @pytest.mark.parametrize("status", ["scheduled", "blocked", "queued", "running"])
    def test_a_finished_batch_with_an_unfinished_job_is_not_pruned(self, settings: Any, status: str) -> None:
        """A callback, or a job that was retried by hand, needs the row of its batch."""
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0, "failed": 0}}
        with Batch() as batch:
            pass
        make_job(status, batch_id=batch.id)
        age_batches(timedelta(hours=1))
        assert prune_batches(store) == 0

    def test_an_open_batch_is_not_pruned(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0, "failed": 0}}
        with Batch():
            jobs.noop.defer()
        Job.objects.all().delete()
        assert prune_batches(store) == 0

    @pytest.mark.parametrize("end", ["failed", "discarded"])
    def test_a_batch_with_failures_is_kept_as_long_as_failed_jobs(self, settings: Any, end: str) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 60, "failed": 3600}}
        with Batch():
            job = jobs.fail.using(max_attempts=1).defer()
        if end == "failed":
            run_jobs()
        else:
            assert job.discard()
        assert len(finish_and_list_batches()) == 1
        age_batches(timedelta(minutes=30))
        assert prune_batches(store) == 0
        age_batches(timedelta(minutes=31))
        assert prune_batches(store) == 1

    def test_an_inner_batch_is_deleted_once_the_outer_batch_is_finished(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 60}}
        with Batch() as outer, Batch() as inner:
            pass
        assert len(finish_and_list_batches()) == 2
        JobBatch.objects.filter(pk=inner.id).update(finished_at=outer.row.created_at - timedelta(hours=1))
        assert prune_batches(store) == 1
        assert [batch.pk for batch in JobBatch.objects.all()] == [outer.id]


@pytest.mark.django_db(transaction=True)
def test_a_prune_skips_a_locked_batch(settings: Any, session: Callable[[], Session]) -> None:
    settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
    ids = []
    for _ in range(2):
        with Batch() as batch:
            pass
        ids.append(batch.id)
    age_batches(timedelta(hours=1))
    other_session = session()
    other_session.begin()
    other_session(lambda: list(JobBatch.objects.select_for_update().filter(pk=ids[0])))
    with connection.cursor() as cursor:
        # a prune that waits for the lock fails after 5 s, instead of waiting until the test ends
        cursor.execute("SET lock_timeout = '5s'")
        try:
            assert prune_batches(store) == 1
        finally:
            cursor.execute("RESET lock_timeout")
    other_session.rollback()
    assert [batch.pk for batch in JobBatch.objects.all()] == ids[:1]

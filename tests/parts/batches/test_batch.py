"""A batch: which jobs belong to it, when it is finished, and which callbacks are enqueued then."""

import asyncio
import contextvars
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_skipqueue import Batch
from django_skipqueue.exceptions import BatchFinished, InvalidArguments, InvalidOption
from django_skipqueue.models import Job, JobBatch, PrunedOfBatch
from django_skipqueue.parts.batches.finish import FinishResult, finish_batches, finish_open_batches, prune_batches
from django_skipqueue.parts.batches.values import BatchProgress
from django_skipqueue.queue.store import Store
from django_skipqueue.testing import run_jobs
from django_skipqueue.worker.by_hand import run

from ...app import jobs
from ...app.rows import make_job
from ...app.sessions import Session
from ...harness.partitions import make_partitions
from .jobs import callbacks_of, counts_of, fan_out, see_batch

store = Store("default")

pytestmark = pytest.mark.django_db

# `on_success` is enqueued if all jobs complete, `on_failure` if not, and `on_finish` in either case.
ALL_CALLBACKS: dict[str, Any] = {
    "on_success": jobs.echo.s("good"),
    "on_failure": jobs.echo.s("bad"),
    "on_finish": jobs.echo.s("over"),
}
# These callbacks, as `callbacks_of` returns them: the name of the task and its arguments.
SUCCESS_CALLBACK, FAILURE_CALLBACK, FINISH_CALLBACK = ("echo", ["good"]), ("echo", ["bad"]), ("echo", ["over"])


def finish_and_list_batches() -> list[JobBatch]:
    """Finish every batch whose jobs have ended, as workers do, and return all finished batches."""
    finish_open_batches(store)
    return list(JobBatch.objects.exclude(finished_at=None).order_by("id"))


class TestMembers:
    def test_jobs_deferred_in_the_block_belong_to_the_batch_and_other_jobs_do_not(self) -> None:
        job_before_the_block = jobs.noop.defer()
        with Batch(name="mine") as batch:
            jobs_in_the_block = [
                jobs.noop.defer(),
                jobs.add.using(run_after=timedelta(hours=1), unique_key="k").defer(1),
            ]
            jobs_in_the_block += Job.objects.in_bulk(jobs.add.defer_many([(1,), (2,)])).values()
            jobs_in_the_block += Job.objects.in_bulk(jobs.add.using(unique_key=str).defer_many([(3,), (4,)])).values()
            jobs_in_the_block.append(Job.objects.enqueue("by.name"))
            jobs_in_the_block.append(jobs.noop.s().defer())
        job_after_the_block = jobs.noop.defer()
        assert {job.pk for job in batch.jobs} == {job.pk for job in jobs_in_the_block}
        assert {job.batch_id for job in jobs_in_the_block} == {batch.id}
        assert job_before_the_block.batch_id is job_after_the_block.batch_id is None
        assert batch.row.name == "mine"
        assert Batch.of(jobs_in_the_block[0]) is not None
        assert Batch.of(jobs_in_the_block[0].pk).id == batch.id  # type: ignore[union-attr]
        assert Batch.of(job_before_the_block) is None

    def test_a_with_block_that_raises_leaves_neither_batch_nor_jobs(self) -> None:
        batch = Batch(on_finish=jobs.noop)
        with pytest.raises(InvalidArguments), batch:
            jobs.add.defer_many([(1,), ()])
        assert not Job.objects.exists()
        assert not JobBatch.objects.exists()
        with pytest.raises(InvalidOption, match="no row yet"):
            _ = batch.id
        assert jobs.noop.defer().batch_id is None

    def test_a_job_that_exists_already_does_not_join_the_batch(self) -> None:
        existing = jobs.noop.using(unique_key="k").defer()
        with Batch() as batch:
            assert jobs.noop.using(unique_key="k").defer().pk == existing.pk
        assert not batch.jobs.exists()

    def test_a_job_of_a_batch_can_add_jobs_to_it(self) -> None:
        with Batch(on_success=jobs.echo.s("good")) as batch:
            fan_out.defer(3)
        run_jobs()
        assert batch.progress() == BatchProgress(total=4, done=4, completed=4, failed=0, discarded=0, is_finished=True)
        assert callbacks_of() == [SUCCESS_CALLBACK]

    def test_no_job_can_be_added_to_a_finished_batch(self) -> None:
        with Batch() as batch:
            pass
        with pytest.raises(BatchFinished, match="finished"):
            batch.add(jobs.noop.s())
        with pytest.raises(BatchFinished), Batch.get(batch.id):
            pytest.fail("the block must not begin")
        assert not Job.objects.exists()
        assert jobs.noop.defer().batch_id is None

    def test_a_block_can_be_within_a_block_of_the_same_batch(self) -> None:
        with Batch() as batch, batch:
            inner = jobs.noop.defer()
        assert inner.batch_id == batch.id


class TestRefusals:
    @pytest.mark.parametrize("callback", [1, "noop", print])
    def test_a_callback_that_is_neither_a_task_nor_a_call_is_refused(self, callback: Any) -> None:
        with pytest.raises(InvalidOption, match="on_success must be a task"):
            Batch(on_success=callback)

    def test_a_callback_whose_arguments_do_not_fit_is_refused_at_once(self) -> None:
        with pytest.raises(InvalidArguments, match="missing"):
            jobs.add.s()  # type: ignore[call-arg]
        with pytest.raises(InvalidArguments, match="missing"):
            Batch(on_success=jobs.add)

    @pytest.mark.parametrize("options", [{"database": "nowhere"}, {"name": 3}])
    def test_invalid_options_of_a_batch_are_refused(self, options: Any) -> None:
        with pytest.raises(InvalidOption):
            Batch(**options)

    def test_a_name_that_the_table_cannot_store_is_refused(self) -> None:
        with pytest.raises(InvalidArguments):
            Batch(name="a\0b")

    def test_the_error_of_an_async_with_block_says_what_to_do(self) -> None:
        async def block() -> None:
            async with Batch():
                pass

        with pytest.raises(TypeError, match="sync_to_async"):
            asyncio.run(block())

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_batch_refuses_jobs_of_another_database(self) -> None:
        with pytest.raises(InvalidOption, match="outside of the with block"), Batch():
            jobs.noop.using(database="other").defer()
        with (
            pytest.raises(InvalidOption, match="in the database and the thread of its outer batch"),
            Batch(),
            Batch(database="other"),
        ):
            pytest.fail("the block must not begin")
        with pytest.raises(InvalidOption, match="on_finish is a call in the database"):
            Batch(on_finish=jobs.noop.using(database="other").s())
        assert not JobBatch.objects.exists()

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_batch_can_be_in_another_database(self) -> None:
        with Batch(database="other", on_finish=jobs.noop) as batch:
            jobs.noop.using(database="other").defer()
        assert batch.progress().total == 1
        assert not JobBatch.objects.exists()
        assert JobBatch.objects.using("other").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_batch_refuses_a_job_deferred_in_another_thread(session: Callable[[], Session]) -> None:
    other_session = session()
    with Batch() as batch:
        context_of_the_block = contextvars.copy_context()
        with pytest.raises(InvalidOption, match="in the thread of its with block"):
            other_session(context_of_the_block.run, jobs.noop.defer)
        assert other_session(jobs.noop.defer).batch_id is None
    assert batch.progress().total == 0


class TestEnd:
    def test_an_empty_batch_is_finished_at_once(self) -> None:
        with Batch(**ALL_CALLBACKS) as batch:
            assert not JobBatch.objects.get().finished_at
        assert callbacks_of() == [SUCCESS_CALLBACK, FINISH_CALLBACK]
        assert batch.progress() == BatchProgress(total=0, done=0, completed=0, failed=0, discarded=0, is_finished=True)
        assert batch.progress().share == 1.0

    def test_a_batch_waits_for_its_last_job(self) -> None:
        with Batch(**ALL_CALLBACKS) as batch:
            for _ in range(3):
                jobs.noop.defer()
        for done in range(3):
            assert not finish_and_list_batches()
            assert batch.progress() == BatchProgress(
                total=3, done=done, completed=done, failed=0, discarded=0, is_finished=False
            )
            run_first_job()
        assert counts_of(finish_and_list_batches()[0]) == (3, 0, 0), "three completed jobs"
        assert callbacks_of() == [SUCCESS_CALLBACK, FINISH_CALLBACK]
        assert batch.progress() == BatchProgress(total=3, done=3, completed=3, failed=0, discarded=0, is_finished=True)
        assert not finish_and_list_batches()[1:]
        assert callbacks_of() == [SUCCESS_CALLBACK, FINISH_CALLBACK]

    @pytest.mark.parametrize("status", ["scheduled", "blocked", "queued", "running"])
    def test_a_batch_waits_for_a_job_in_any_status_that_is_not_finished(self, status: str) -> None:
        with Batch() as batch:
            discarded_job = jobs.noop.defer()
        unfinished_job = make_job(status, batch_id=batch.id)
        assert discarded_job.discard()
        assert not finish_and_list_batches()
        assert unfinished_job.cancel()
        assert len(finish_and_list_batches()) == 1

    @pytest.mark.parametrize("end", ["discard", "cancel", "fail", "recover", "delete"])
    def test_a_batch_is_finished_however_its_last_job_ends(self, end: str) -> None:
        with Batch(**ALL_CALLBACKS) as batch:
            jobs.noop.defer()
            last_job = jobs.fail.using(max_attempts=1).defer()
        run_first_job()
        if end == "discard":
            assert last_job.discard()
        elif end == "cancel":
            assert last_job.cancel()
        elif end == "fail":
            run_first_job()
        elif end == "recover":
            assert store.claim(queue_names=["default"], limit=1, worker_id="gone:0123456789ab")
            assert store.recover(worker_ids=["gone:0123456789ab"])
        else:
            last_job.delete()
        assert len(finish_and_list_batches()) == 1
        assert callbacks_of() == (
            [SUCCESS_CALLBACK, FINISH_CALLBACK] if end == "delete" else [FAILURE_CALLBACK, FINISH_CALLBACK]
        )
        assert batch.progress().done == (1 if end == "delete" else 2)

    def test_a_job_that_is_retried_does_not_finish_its_batch(self) -> None:
        with Batch(on_finish=jobs.noop):
            jobs.ask_for_retry.defer(60.0)
        run_first_job()
        assert Job.objects.get().status == "scheduled"
        assert not finish_and_list_batches()

    def test_a_manual_retry_after_the_end_of_a_batch_enqueues_no_callback_again(self) -> None:
        with Batch(**ALL_CALLBACKS):
            job = jobs.fail.using(max_attempts=1).defer()
        run_jobs()
        assert callbacks_of() == [FAILURE_CALLBACK, FINISH_CALLBACK]
        job.refresh_from_db()
        assert job.retry()
        run_jobs()
        assert callbacks_of() == [FAILURE_CALLBACK, FINISH_CALLBACK]
        assert len(finish_and_list_batches()) == 1

    def test_pruned_jobs_are_counted(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0, "failed": 0}}
        with Batch(**ALL_CALLBACKS) as batch:
            jobs.noop.defer()
            jobs.fail.using(max_attempts=1).defer()
            jobs.noop.using(priority=-1).defer()
        run_first_job()
        run_first_job()
        assert store.prune() == {"completed": 1, "failed": 1}
        assert batch.progress() == BatchProgress(total=3, done=2, completed=1, failed=1, discarded=0, is_finished=False)
        run_first_job()
        assert counts_of(finish_and_list_batches()[0]) == (2, 1, 0), "two completed jobs and one failed job"
        assert callbacks_of() == [FAILURE_CALLBACK, FINISH_CALLBACK]
        assert batch.progress().total == 3

    def test_archived_jobs_are_counted(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}, "ARCHIVE": None}
        make_partitions()
        with Batch() as batch:
            jobs.noop.defer()
            jobs.noop.defer()
        run_first_job()
        assert store.prune() == {"completed": 1}
        assert batch.progress() == BatchProgress(total=2, done=1, completed=1, failed=0, discarded=0, is_finished=False)

    def test_a_callback_has_its_options_and_finds_its_batch(self) -> None:
        delayed_callback = see_batch.using(
            priority=7, queue_name="mail", run_after=timedelta(hours=2), max_attempts=4, timeout=9.5
        )
        with Batch(on_finish=delayed_callback.s("note"), name="b") as batch:
            pass
        callback = Job.objects.get()
        assert (callback.priority, callback.queue_name, callback.max_attempts) == (7, "mail", 4)
        assert (callback.status, callback.timeout, callback.batch_id) == ("scheduled", 9.5, batch.id)
        assert callback.run_after - callback.enqueued_at == timedelta(hours=2)
        run_jobs(include_scheduled=True)
        callback.refresh_from_db()
        assert callback.result == [batch.id, "note"]

    def test_the_context_of_a_job_without_a_batch_has_no_batch(self) -> None:
        see_batch.defer("alone")
        assert run_jobs()[0].result == [None, "alone"]


class TestNested:
    def test_the_outer_batch_waits_for_the_inner_batch_and_its_callbacks(self) -> None:
        with Batch(name="outer", **ALL_CALLBACKS) as outer:
            with Batch(name="inner", on_success=jobs.fail.using(max_attempts=1).s("callback")) as inner:
                jobs.noop.defer()
            jobs.noop.defer()
        assert inner.row.parent_id == outer.id
        assert outer.progress() == BatchProgress(total=2, done=0, completed=0, failed=0, discarded=0, is_finished=False)
        run_first_job()
        run_first_job()
        assert [batch.name for batch in finish_and_list_batches()] == ["inner"]
        assert outer.progress() == BatchProgress(total=2, done=2, completed=2, failed=0, discarded=0, is_finished=False)
        run_first_job()
        assert [batch.name for batch in finish_and_list_batches()] == ["outer", "inner"]
        assert callbacks_of("outer") == [FAILURE_CALLBACK, FINISH_CALLBACK], "a callback of the inner batch has failed"
        assert counts_of(outer.row) == (2, 0, 0)

    def test_an_empty_inner_batch_does_not_finish_the_outer_batch_in_its_block(self) -> None:
        with Batch(name="outer", **ALL_CALLBACKS):
            with Batch(name="inner"):
                pass
            assert [batch.name for batch in JobBatch.objects.exclude(finished_at=None)] == ["inner"]
            jobs.noop.defer()
        assert [batch.name for batch in finish_and_list_batches()] == ["inner"]
        run_jobs()
        assert [batch.name for batch in finish_and_list_batches()] == ["outer", "inner"]

    def test_the_end_of_the_innermost_batch_finishes_all_outer_batches(self) -> None:
        with Batch(name="1", **ALL_CALLBACKS), Batch(name="2"), Batch(name="3") as innermost:
            jobs.fail.using(max_attempts=1).defer()
        run_first_job()
        assert finish_batches(store, [innermost.id]) == FinishResult(finished=3)
        assert [batch.name for batch in JobBatch.objects.exclude(finished_at=None).order_by("id")] == ["1", "2", "3"]
        assert callbacks_of("1") == [FAILURE_CALLBACK, FINISH_CALLBACK]
        assert counts_of(JobBatch.objects.get(name="1")) == (0, 1, 0), "one failed job"


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    def test_a_batch_is_not_finished_while_its_transaction_is_open(self, session: Callable[[], Session]) -> None:
        other_session = session()
        other_session.begin()
        batch = other_session(lambda: Batch(on_finish=jobs.noop).__enter__())
        other_session(jobs.noop.defer)
        assert not finish_and_list_batches()
        assert not store.claim(queue_names=["default"], limit=1, worker_id="w")
        other_session(lambda: batch.__exit__(None, None, None))
        assert not finish_and_list_batches()
        other_session.commit()
        run_jobs()
        assert len(finish_and_list_batches()) == 1
        assert callbacks_of() == [("noop", [])]

    def test_a_transaction_that_adds_a_job_keeps_the_batch_open_until_its_commit(
        self, session: Callable[[], Session]
    ) -> None:
        with Batch(on_finish=jobs.noop) as batch:
            jobs.noop.defer()
        other_session = session()
        other_session.begin()
        other_session(Batch.get(batch.id).add, jobs.noop.s())
        run_first_job()
        assert not finish_and_list_batches()
        other_session.commit()
        assert not finish_and_list_batches()
        run_first_job()
        assert len(finish_and_list_batches()) == 1

    def test_two_processes_that_finish_a_batch_at_once_enqueue_one_callback(
        self, session: Callable[[], Session]
    ) -> None:
        with Batch(on_finish=jobs.noop) as batch:
            job = jobs.noop.defer()
        assert job.discard()
        other_session = session()
        other_session.begin()
        assert other_session(finish_batches, store, [batch.id]) == FinishResult(finished=1)
        assert finish_batches(store, [batch.id]) == FinishResult(missed=True), "the other session has locked the batch"
        other_session.commit()
        assert finish_batches(store, [batch.id]) == FinishResult()
        assert callbacks_of() == [("noop", [])]

    def test_a_job_added_before_the_lock_of_its_batch_keeps_the_batch_open(
        self, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process sees that all jobs have ended. Then a job is added. After the lock, the process sees this job."""
        with Batch(on_finish=jobs.noop) as batch:
            jobs.noop.defer()
        assert batch.jobs.discard()
        other_session = session()
        original_rows = Store.rows

        def add_before_the_lock(self: Store, statement: str, values: Any = None) -> Any:
            if "FOR UPDATE SKIP LOCKED" in statement and "skipqueue_batch" in statement:
                monkeypatch.setattr(Store, "rows", original_rows)
                other_session(Batch.get(batch.id).add, jobs.noop.s())
            return original_rows(self, statement, values)

        monkeypatch.setattr(Store, "rows", add_before_the_lock)
        assert finish_batches(store, [batch.id]) == FinishResult(missed=True)
        assert not finish_and_list_batches()
        assert batch.progress().total == 2

    def test_completing_a_claimed_job_by_hand_finishes_its_batch(self) -> None:
        with Batch(on_finish=jobs.noop):
            jobs.noop.defer()
        [job] = Job.objects.claim(queue_names=["default"], worker_id="loop")
        with transaction.atomic():
            job.complete()
            assert not callbacks_of()
        assert callbacks_of() == [("noop", [])]

    def test_a_rollback_undoes_the_end_of_a_batch(self) -> None:
        with transaction.atomic():
            with Batch(on_finish=jobs.noop):
                jobs.noop.defer()
            transaction.set_rollback(True)
        assert not JobBatch.objects.exists()
        assert not Job.objects.exists()


class TestPrune:
    def test_a_batch_is_deleted_after_its_retention(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 60, "failed": 3600}}
        with Batch(name="good"):
            jobs.noop.defer()
        with Batch(name="bad"):
            jobs.fail.using(max_attempts=1).defer()
        with Batch(name="outer"):
            with Batch(name="inner"):
                pass
            jobs.noop.using(run_after=timedelta(days=1)).defer()
        with Batch(name="calls", on_finish=jobs.noop.using(run_after=timedelta(days=1))):
            pass
        run_jobs()
        age_batches(timedelta(seconds=50))  # batches without failures are kept for a minute
        assert prune_batches(store) == 0
        age_batches(timedelta(seconds=20))
        assert prune_batches(store) == 1
        assert set(batch_names()) == {"bad", "outer", "inner", "calls"}
        age_batches(timedelta(hours=1))
        assert prune_batches(store) == 1
        assert set(batch_names()) == {"outer", "inner", "calls"}
        Job.objects.all().discard()
        finish_and_list_batches()
        age_batches(timedelta(hours=1))
        assert prune_batches(store) == 2
        assert batch_names() == ["calls"], "the callback of this batch can be retried"
        Job.objects.all().delete()
        assert prune_batches(store) == 1

    def test_a_callback_that_has_failed_is_retried_with_its_batch(self) -> None:
        with Batch(on_finish=jobs.fail.using(max_attempts=1)) as batch:
            pass
        run_jobs()
        callback = Job.objects.get()
        assert (callback.status, batch.row.failed) == ("failed", 0)
        age_batches(timedelta(days=2))
        assert prune_batches(store) == 0
        callback.retry()
        Job.objects.update(task="tests.parts.batches.jobs.see_batch")
        [callback] = run_jobs()
        assert callback.result == [batch.id, ""]
        assert prune_batches(store) == 1

    def test_batches_without_a_retention_are_kept(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": None}}
        with Batch():
            pass
        age_batches(timedelta(days=1000))
        assert prune_batches(store) == 0

    def test_the_counts_of_pruned_jobs_are_deleted_with_the_batch(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}}
        with Batch():
            jobs.noop.defer()
        run_first_job()
        store.prune()
        assert PrunedOfBatch.objects.count() == 1
        assert finish_and_list_batches()
        assert prune_batches(store) == 1
        assert not PrunedOfBatch.objects.exists()


def run_first_job() -> None:
    """Run the first job of the queue, as a worker does."""
    [job] = Job.objects.claim(queue_names=["default", "mail"], worker_id="w")
    run(job)


def age_batches(by: timedelta) -> None:
    """Change every finished batch as if it had finished earlier."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE skipqueue_batch SET finished_at = finished_at - make_interval(secs => %s)", [by.total_seconds()]
        )


def batch_names() -> list[str]:
    return list(JobBatch.objects.values_list("name", flat=True))

"""An error in one batch stops no other batch and ends no process, and the batch is tried again."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_skipqueue import Batch
from django_skipqueue.events import tracing
from django_skipqueue.exceptions import InvalidOption, UniqueKeyDeadlock
from django_skipqueue.models import Job, JobBatch, PrunedOfBatch
from django_skipqueue.parts.batches import finish as batches
from django_skipqueue.parts.batches import services
from django_skipqueue.parts.batches.dependencies import Dependants
from django_skipqueue.parts.batches.events import BatchesFinished, BatchNotFinished, CallbackSkipped
from django_skipqueue.parts.batches.finish import FinishResult, finish_all_batches, finish_batches, finish_open_batches
from django_skipqueue.parts.batches.services import (
    FIRST_BATCH_DELAY,
    LONGEST_BATCH_DELAY,
    PAUSE_FACTOR,
    BatchCheck,
    FinishBatches,
)
from django_skipqueue.queue.store import Store
from django_skipqueue.worker.by_hand import run

from ...app import jobs
from ...app.sessions import Session
from ...harness.partitions import make_partitions
from .jobs import callbacks_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent_events() -> list[Any]:
    return []


@pytest.fixture
def store(sent_events: list[Any], monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(batches, "LOCK_TIMEOUT_OF_BATCHES", "50ms")
    monkeypatch.setattr(batches, "FINISHING_SECONDS", 60.0)
    return Store("default", send=sent_events.append)


def make_ended_batch(name: str = "", **callbacks: Any) -> int:
    """Make an open batch whose only job is finished, and return its id."""
    with Batch(name=name, **callbacks) as batch:
        jobs.noop.defer()
    assert batch.jobs.discard()
    with connection.cursor() as cursor:  # the discard may have finished the batch already
        cursor.execute("SELECT finished_at FROM skipqueue_batch WHERE id = %s", [batch.id])
        assert cursor.fetchone() == (None,)
    return batch.id


def are_finished(*ids: int) -> list[bool]:
    finished_at_by_id = dict(JobBatch.objects.filter(pk__in=ids).values_list("id", "finished_at"))
    return [finished_at_by_id[id] is not None for id in ids]


def failed_batch_ids(sent_events: list[Any]) -> list[int]:
    return [event.batch_id for event in sent_events if isinstance(event, BatchNotFinished)]


def break_callbacks(batch_id: int) -> None:
    """Write invalid callbacks into the row of a batch."""
    JobBatch.objects.filter(pk=batch_id).update(callbacks={"on_finish": {"spec": {"no": 1}, "call": {}}})


class TestAfter:
    @pytest.mark.parametrize("name", ["on_success", "on_failure", "on_finish"])
    def test_a_callback_cannot_wait_for_jobs(self, name: str) -> None:
        callbacks: dict[str, Any] = {name: jobs.noop.s().after(jobs.noop.defer())}
        with pytest.raises(InvalidOption, match=f"{name} cannot wait for other jobs with after"):
            Batch(**callbacks)

    def test_a_callback_that_needs_a_deleted_job_does_not_stop_other_batches(
        self, store: Store, sent_events: list[Any]
    ) -> None:
        bad, good = make_ended_batch(on_finish=jobs.noop), make_ended_batch(on_finish=jobs.noop)
        bad_batch = JobBatch.objects.get(pk=bad)
        bad_batch.callbacks["on_finish"]["spec"]["after"] = [10**9]  # no job has this id
        bad_batch.save()
        FinishBatches(store).run(time.monotonic())
        assert are_finished(bad, good) == [False, True]
        assert failed_batch_ids(sent_events) == [bad]
        assert sum(isinstance(event, BatchesFinished) for event in sent_events) == 1


class TestManyOpenBatches:
    @pytest.mark.parametrize(("seconds", "runs"), [(60.0, 1), (0.0, 4)])
    def test_a_run_of_the_service_checks_batches_until_its_time_is_over(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int
    ) -> None:
        for _ in range(3):
            with Batch():
                jobs.noop.defer()
        last_batch = make_ended_batch()
        monkeypatch.setattr(services, "finish_open_batches", partial(finish_open_batches, limit=1))
        monkeypatch.setattr(services, "CHECKING_SECONDS", seconds)
        service = FinishBatches(store)
        for _ in range(runs):
            assert are_finished(last_batch) == [False]
            service.run(time.monotonic())
        assert are_finished(last_batch) == [True]


class TestIsolation:
    @pytest.mark.parametrize("end", ["supervisor", "worker", "drain"])
    def test_a_batch_with_invalid_callbacks_does_not_stop_other_batches(
        self, store: Store, sent_events: list[Any], end: str
    ) -> None:
        bad, good = make_ended_batch(), make_ended_batch(on_finish=jobs.echo.s("good"))
        break_callbacks(bad)
        if end == "supervisor":
            FinishBatches(store).run(time.monotonic())
        elif end == "worker":
            check = BatchCheck(store)
            check.settled({(1, 1): bad, (2, 1): good})  # the ids of batches, by the id and lease of a settled job
            check.run(time.monotonic())
            assert check.due_at > time.monotonic() + 1e6, "the worker leaves the next try to the supervisors"
        else:
            assert finish_all_batches(store) == 1
            assert finish_all_batches(store) == 0
        assert are_finished(bad, good) == [False, True]
        assert set(failed_batch_ids(sent_events)) == {bad}
        assert callbacks_of() == [("echo", ["good"])]

    def test_a_lost_connection_is_raised_and_not_blamed_on_the_batch(
        self, store: Store, sent_events: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_ended_batch(on_finish=jobs.noop)
        monkeypatch.setattr(batches, "LOCK_BATCHES", "SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(OperationalError):
            finish_open_batches(store)
        connection.close()
        assert not failed_batch_ids(sent_events)

    def test_a_batch_that_cannot_be_finished_is_tried_again_after_growing_delays(
        self, store: Store, sent_events: list[Any]
    ) -> None:
        bad = make_ended_batch(on_finish=jobs.noop)
        valid_callbacks = JobBatch.objects.get(pk=bad).callbacks
        break_callbacks(bad)
        service = FinishBatches(store)
        delays, now = [], time.monotonic()
        for tries in range(1, 8):
            service.run(now)
            assert len(failed_batch_ids(sent_events)) == tries
            service.run(now)
            assert len(failed_batch_ids(sent_events)) == tries, "the batch waits for its delay"
            delay, next_try_at = service.failed[bad]
            delays.append(delay)
            now = next_try_at
        assert delays[:2] == [FIRST_BATCH_DELAY, 2 * FIRST_BATCH_DELAY]
        assert delays[-1] == LONGEST_BATCH_DELAY
        assert service.due_at > time.monotonic()
        JobBatch.objects.filter(pk=bad).update(callbacks=valid_callbacks)
        service.run(now)
        assert are_finished(bad) == [True]


class TestUniqueKeys:
    def test_a_callback_that_waits_for_a_unique_key_does_not_stop_other_batches(
        self, store: Store, sent_events: list[Any], session: Callable[[], Session]
    ) -> None:
        waiting_batch, free_batch = (
            make_ended_batch(on_finish=jobs.noop.using(unique_key="k")),
            make_ended_batch(on_finish=jobs.noop),
        )
        other_session = session()
        other_session.begin()
        other_session(jobs.noop.using(unique_key="k").defer)
        check = BatchCheck(store)
        check.settled({(1, 1): waiting_batch, (2, 1): free_batch})
        check.run(time.monotonic())
        assert are_finished(waiting_batch, free_batch) == [False, True]
        assert failed_batch_ids(sent_events) == [waiting_batch]
        other_session.rollback()
        finish_open_batches(store)
        assert are_finished(waiting_batch) == [True]
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() != ("50ms",), "the lock timeout of batches is not left in the session"

    def test_completing_a_job_does_not_wait_for_the_unique_key_of_a_callback(
        self, store: Store, session: Callable[[], Session]
    ) -> None:
        with Batch(on_finish=jobs.noop.using(unique_key="k")) as batch:
            jobs.noop.defer()
        other_session = session()
        other_session.begin()
        other_session(jobs.noop.using(unique_key="k").defer)
        [job] = Job.objects.claim(queue_names=["default"], worker_id="loop")
        job.complete()
        assert are_finished(batch.id) == [False]
        other_session.rollback()

    def test_a_deadlock_in_one_batch_does_not_stop_other_batches(
        self, store: Store, sent_events: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deadlocked, good = (
            make_ended_batch(on_finish=jobs.noop.using(unique_key="k")),
            make_ended_batch(on_finish=jobs.noop),
        )

        def raise_deadlock(self: Store, spec: Any, call: Any) -> Any:
            if call.unique_key is not None:
                raise UniqueKeyDeadlock
            return original_enqueue(self, spec, call)

        original_enqueue = Store.enqueue_untraced
        monkeypatch.setattr(Store, "enqueue_untraced", raise_deadlock)
        finish_open_batches(store)
        assert are_finished(deadlocked, good) == [False, True]
        assert failed_batch_ids(sent_events) == [deadlocked]

    def test_callbacks_are_enqueued_in_the_order_of_their_keys(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        callbacks: dict[str, Any] = {
            name: jobs.noop.using(unique_key=key) for name, key in (("on_failure", "b"), ("on_finish", "a"))
        }
        make_ended_batch(**callbacks)
        enqueued_keys = []
        original_enqueue = Store.enqueue_untraced

        def note_unique_key(self: Store, spec: Any, call: Any) -> Any:
            enqueued_keys.append(call.unique_key)
            return original_enqueue(self, spec, call)

        monkeypatch.setattr(Store, "enqueue_untraced", note_unique_key)
        finish_open_batches(store)
        assert enqueued_keys == ["a", "b"]

    def test_batches_are_finished_in_transactions_of_their_own(
        self, store: Store, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the second batch is finished, no other transaction waits for the unique key of the first batch."""
        make_ended_batch(on_finish=jobs.noop.using(unique_key="a"))
        make_ended_batch(on_finish=jobs.noop.using(unique_key="b"))
        other_session = session()
        was_created = []
        original_enqueue = Store.enqueue_untraced

        def enqueue_meanwhile(self: Store, spec: Any, call: Any) -> Any:
            if call.unique_key == "b":
                was_created.append(other_session(jobs.noop.using(unique_key="a").defer).created)
            return original_enqueue(self, spec, call)

        monkeypatch.setattr(Store, "enqueue_untraced", enqueue_meanwhile)
        finish_open_batches(store)
        assert was_created == [False], "the callback of the first batch is committed, and holds the key"

    def test_a_callback_can_take_a_unique_key_whose_time_is_over(self, store: Store, sent_events: list[Any]) -> None:
        task = jobs.echo.using(unique_key="nightly", until=timedelta(hours=1))
        task.defer(0)
        [job] = Job.objects.claim(queue_names=["default"], worker_id="w")
        run(job)
        Job.objects.filter(pk=job.pk).update(  # as if the job had been enqueued two hours ago
            enqueued_at=job.enqueued_at - timedelta(hours=2), run_after=job.enqueued_at - timedelta(hours=2)
        )
        batch_id = make_ended_batch(on_finish=task.s(1))
        finish_open_batches(store)
        assert callbacks_of() == [("echo", [1])]
        assert are_finished(batch_id) == [True]
        assert not [event for event in sent_events if isinstance(event, CallbackSkipped)]

    def test_a_callback_skipped_because_its_unique_key_is_held_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs.echo.using(unique_key="k").defer(0)
        batch_id = make_ended_batch(on_finish=jobs.echo.using(unique_key="k").s(1))
        with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
            finish_open_batches(Store("default"))
        assert are_finished(batch_id) == [True]
        assert not callbacks_of()
        [log_line] = [message for message in caplog.messages if message.startswith("callback skipped")]
        assert f"batch={batch_id} callback=on_finish task=tests.app.jobs.echo" in log_line


class TestLimits:
    def test_one_run_of_a_worker_finishes_a_limited_number_of_batches(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "MOST_BATCHES_FINISHED", 2)
        ids = [make_ended_batch() for _ in range(5)]
        check = BatchCheck(store)
        check.settled({(id, 1): id for id in ids})
        for finished in (2, 4, 5):
            assert check.due_at < time.monotonic() + 60
            check.run(time.monotonic())
            assert sum(are_finished(*ids)) == finished
        assert check.due_at > time.monotonic() + 1e6, "no further check is due"

    def test_a_supervisor_goes_on_at_once_with_the_batches_that_are_left(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "MOST_BATCHES_FINISHED", 2)
        ids = [make_ended_batch() for _ in range(5)]
        service = FinishBatches(store)
        for finished in (2, 4, 5):
            assert service.due_at <= time.monotonic()
            service.run(time.monotonic())
            assert sum(are_finished(*ids)) == finished
        assert service.due_at > time.monotonic()

    def test_a_run_tries_at_least_one_batch_even_if_its_time_is_over(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "FINISHING_SECONDS", -1.0)
        ids = [make_ended_batch() for _ in range(3)]
        result = finish_batches(store, ids)
        assert (result.finished, result.not_tried) == (1, set(ids[1:]))

    def test_a_drain_finishes_all_batches(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "MOST_BATCHES_FINISHED", 2)
        ids = [make_ended_batch() for _ in range(5)]
        break_callbacks(ids[0])
        break_callbacks(ids[1])
        while finish_all_batches(store):
            pass
        assert are_finished(*ids) == [False, False, True, True, True]


def test_no_tracer_of_the_project_runs_in_a_supervisor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tracer:
        def sending(self, batch: Any) -> Any:
            pytest.fail("the supervisor has called a tracer of the project")

        def attempt(self, job: Any) -> Any: ...

    make_ended_batch(on_finish=jobs.noop)
    monkeypatch.setattr(tracing, "tracers", [])
    monkeypatch.setattr("django_skipqueue.queue.enqueue.tracers", [Tracer()])
    monkeypatch.setattr(tracing, "tracers", [Tracer()])
    finish_open_batches(store)
    assert callbacks_of() == [("noop", [])]


class TestPruned:
    def test_a_pruned_failed_callback_of_an_inner_batch_counts_as_a_failure(self, store: Store, settings: Any) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0, "failed": 0}}
        callbacks: dict[str, Any] = {"on_success": jobs.echo.s("good"), "on_failure": jobs.echo.s("bad")}
        with Batch(name="outer", **callbacks):
            with Batch(name="inner", on_finish=jobs.fail.using(max_attempts=1, priority=9).s("callback")):
                jobs.noop.using(priority=9).defer()
            jobs.noop.defer()
        for _ in range(3):
            [job] = Job.objects.claim(queue_names=["default"], worker_id="w")
            run(job)
            finish_open_batches(store)
            store.prune()
        assert callbacks_of("outer") == [("echo", ["bad"])]

    @pytest.mark.parametrize("archive", [False, True])
    def test_pruning_jobs_of_a_finished_batch_stores_no_counts(
        self, store: Store, settings: Any, archive: bool
    ) -> None:
        settings.SKIPQUEUE = {"RETENTION": {"completed": 0}} | ({"ARCHIVE": None} if archive else {})
        make_partitions()
        with Batch(on_finish=jobs.noop):
            jobs.noop.defer()
        for _ in range(2):
            [job] = Job.objects.claim(queue_names=["default"], worker_id="w")
            run(job)
            finish_open_batches(store)
        assert sum(store.prune().values()) == 2
        assert not PrunedOfBatch.objects.exists()


class TestPauses:
    """After a check of batches, the control loop rests for as long as the check took.

    A check admits dependants, and then finishes batches. While other jobs wait, each of these two steps that finds
    nothing to do adds `PAUSE_FACTOR` times its duration.
    """

    ADMIT_SECONDS, FINISH_SECONDS = 0.25, 0.5

    @pytest.fixture
    def check_results(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[Dependants, FinishResult]:
        """The results of the two steps of a check, which take ADMIT_SECONDS and FINISH_SECONDS by a fake clock."""
        dependants, finish_result, clock = Dependants(), FinishResult(), [100.0]

        def after_seconds(seconds: float, result: Any) -> Any:
            clock[0] += seconds
            return result

        monkeypatch.setattr(services, "admit_dependants", lambda *_: after_seconds(self.ADMIT_SECONDS, dependants))
        monkeypatch.setattr(
            services, "finish_batches", lambda _, ids: after_seconds(self.FINISH_SECONDS if ids else 0, finish_result)
        )
        monkeypatch.setattr(services, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        return dependants, finish_result

    def pause_after_check(self, store: Store, *, is_idle: bool = False) -> float:
        check, fake_time = BatchCheck(store, is_idle=lambda: is_idle), vars(services)["time"]
        check.settled({(1, 1): 1})
        check.run(fake_time.monotonic())
        check.settled({(2, 1): 1})
        return float(check.due_at - fake_time.monotonic())

    @pytest.mark.usefixtures("check_results")
    def test_a_check_that_finds_nothing_delays_the_next_check(self, store: Store) -> None:
        duration_of_check = self.ADMIT_SECONDS + self.FINISH_SECONDS
        assert self.pause_after_check(store) == pytest.approx((PAUSE_FACTOR + 1) * duration_of_check)
        assert self.pause_after_check(store, is_idle=True) == pytest.approx(duration_of_check), (
            "no other job has to wait"
        )

    def test_a_check_that_finishes_a_batch_delays_the_next_check_by_its_own_time(
        self, store: Store, check_results: tuple[Dependants, FinishResult]
    ) -> None:
        check_results[1].finished = 1
        assert self.pause_after_check(store) == pytest.approx(
            self.ADMIT_SECONDS + self.FINISH_SECONDS + PAUSE_FACTOR * self.ADMIT_SECONDS
        )

    def test_the_next_step_of_a_chain_is_not_delayed_by_a_check_of_its_batch(
        self, store: Store, check_results: tuple[Dependants, FinishResult]
    ) -> None:
        check_results[0].admitted["default"] = 1
        check_results[0].batch_ids.add(1)
        assert self.pause_after_check(store) == pytest.approx(self.ADMIT_SECONDS)


def test_a_batch_whose_next_job_was_admitted_is_not_checked(store: Store) -> None:
    with Batch(name="chain") as batch:
        first = jobs.noop.defer()
        jobs.noop.using(after=[first]).defer()
    Job.objects.filter(pk=first.pk).update(status="completed", finished_at=Now())
    check = BatchCheck(store)
    check.settled({(first.pk, 1): batch.id})
    with CaptureQueriesContext(connection) as queries:
        check.run(time.monotonic())
    assert not batch.jobs.blocked().exists()
    assert not [query for query in queries.captured_queries if "batch.finished_at IS NULL" in query["sql"]]

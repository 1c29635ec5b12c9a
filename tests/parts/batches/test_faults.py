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
def sent() -> list[Any]:
    return []


@pytest.fixture
def store(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(batches, "LOCK_TIMEOUT_OF_BATCHES", "50ms")
    monkeypatch.setattr(batches, "FINISHING_SECONDS", 60.0)
    return Store("default", send=sent.append)


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


def failed_batch_ids(sent: list[Any]) -> list[int]:
    return [event.batch_id for event in sent if isinstance(event, BatchNotFinished)]


def break_callbacks(batch_id: int) -> None:
    """Write invalid callbacks into the row of a batch."""
    JobBatch.objects.filter(pk=batch_id).update(callbacks={"on_finish": {"spec": {"no": 1}, "call": {}}})


class TestAfter:
    @pytest.mark.parametrize("name", ["on_success", "on_failure", "on_finish"])
    def test_a_callback_cannot_wait_for_jobs(self, name: str) -> None:
        given: dict[str, Any] = {name: jobs.noop.s().after(jobs.noop.defer())}
        with pytest.raises(InvalidOption, match=f"{name} cannot wait for other jobs with after"):
            Batch(**given)

    def test_a_callback_that_needs_a_deleted_job_does_not_stop_other_batches(
        self, store: Store, sent: list[Any]
    ) -> None:
        bad, good = make_ended_batch(on_finish=jobs.noop), make_ended_batch(on_finish=jobs.noop)
        row = JobBatch.objects.get(pk=bad)
        row.callbacks["on_finish"]["spec"]["after"] = [10**9]
        row.save()
        FinishBatches(store).run(time.monotonic())
        assert are_finished(bad, good) == [False, True]
        assert failed_batch_ids(sent) == [bad]
        assert sum(isinstance(event, BatchesFinished) for event in sent) == 1


class TestManyOpenBatches:
    @pytest.mark.parametrize(("seconds", "runs"), [(60.0, 1), (0.0, 4)])
    def test_a_run_of_the_service_checks_batches_until_its_time_is_over(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int
    ) -> None:
        for _ in range(3):
            with Batch():
                jobs.noop.defer()
        last = make_ended_batch()
        monkeypatch.setattr(services, "finish_open_batches", partial(finish_open_batches, limit=1))
        monkeypatch.setattr(services, "CHECKING_SECONDS", seconds)
        service = FinishBatches(store)
        for _ in range(runs):
            assert are_finished(last) == [False]
            service.run(time.monotonic())
        assert are_finished(last) == [True]


class TestIsolation:
    @pytest.mark.parametrize("end", ["supervisor", "worker", "drain"])
    def test_a_batch_with_invalid_callbacks_does_not_stop_other_batches(
        self, store: Store, sent: list[Any], end: str
    ) -> None:
        bad, good = make_ended_batch(), make_ended_batch(on_finish=jobs.echo.s("good"))
        break_callbacks(bad)
        if end == "supervisor":
            FinishBatches(store).run(time.monotonic())
        elif end == "worker":
            check = BatchCheck(store)
            check.settled({(1, 1): bad, (2, 1): good})
            check.run(time.monotonic())
            assert check.due_at > time.monotonic() + 1e6, "the supervisors try again"
        else:
            assert finish_all_batches(store) == 1
            assert finish_all_batches(store) == 0
        assert are_finished(bad, good) == [False, True]
        assert set(failed_batch_ids(sent)) == {bad}
        assert callbacks_of() == [("echo", ["good"])]

    def test_a_lost_connection_is_raised_and_not_blamed_on_the_batch(
        self, store: Store, sent: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_ended_batch(on_finish=jobs.noop)
        monkeypatch.setattr(batches, "LOCK_BATCHES", "SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(OperationalError):
            finish_open_batches(store)
        connection.close()
        assert not failed_batch_ids(sent)

    def test_a_batch_that_cannot_be_finished_is_tried_again_after_growing_delays(
        self, store: Store, sent: list[Any]
    ) -> None:
        bad = make_ended_batch(on_finish=jobs.noop)
        good = JobBatch.objects.get(pk=bad).callbacks
        break_callbacks(bad)
        service = FinishBatches(store)
        delays, now = [], time.monotonic()
        for tries in range(1, 8):
            service.run(now)
            assert len(failed_batch_ids(sent)) == tries
            service.run(now)
            assert len(failed_batch_ids(sent)) == tries, "the batch waits for its delay"
            delay, until = service.failed[bad]
            delays.append(delay)
            now = until
        assert delays[:2] == [FIRST_BATCH_DELAY, 2 * FIRST_BATCH_DELAY]
        assert delays[-1] == LONGEST_BATCH_DELAY
        assert service.due_at > time.monotonic()
        JobBatch.objects.filter(pk=bad).update(callbacks=good)
        service.run(now)
        assert are_finished(bad) == [True]


class TestUniqueKeys:
    def test_a_callback_that_waits_for_a_unique_key_does_not_stop_other_batches(
        self, store: Store, sent: list[Any], session: Callable[[], Session]
    ) -> None:
        held, free = make_ended_batch(on_finish=jobs.noop.using(unique_key="k")), make_ended_batch(on_finish=jobs.noop)
        user = session()
        user.begin()
        user(jobs.noop.using(unique_key="k").defer)
        check = BatchCheck(store)
        check.settled({(1, 1): held, (2, 1): free})
        check.run(time.monotonic())
        assert are_finished(held, free) == [False, True]
        assert failed_batch_ids(sent) == [held]
        user.rollback()
        finish_open_batches(store)
        assert are_finished(held) == [True]
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() != ("50ms",)

    def test_completing_a_job_does_not_wait_for_the_unique_key_of_a_callback(
        self, store: Store, session: Callable[[], Session]
    ) -> None:
        with Batch(on_finish=jobs.noop.using(unique_key="k")) as batch:
            jobs.noop.defer()
        user = session()
        user.begin()
        user(jobs.noop.using(unique_key="k").defer)
        [job] = Job.objects.claim(queue_names=["default"], worker_id="loop")
        job.complete()
        assert are_finished(batch.id) == [False]
        user.rollback()

    def test_a_deadlock_in_one_batch_does_not_stop_other_batches(
        self, store: Store, sent: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deadlocked, good = (
            make_ended_batch(on_finish=jobs.noop.using(unique_key="k")),
            make_ended_batch(on_finish=jobs.noop),
        )

        def raise_deadlock(self: Store, spec: Any, call: Any) -> Any:
            if call.unique_key is not None:
                raise UniqueKeyDeadlock
            return enqueue(self, spec, call)

        enqueue = Store.enqueue_untraced
        monkeypatch.setattr(Store, "enqueue_untraced", raise_deadlock)
        finish_open_batches(store)
        assert are_finished(deadlocked, good) == [False, True]
        assert failed_batch_ids(sent) == [deadlocked]

    def test_callbacks_are_enqueued_in_the_order_of_their_keys(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keyed: dict[str, Any] = {
            name: jobs.noop.using(unique_key=key) for name, key in (("on_failure", "b"), ("on_finish", "a"))
        }
        make_ended_batch(**keyed)
        seen = []
        enqueue = Store.enqueue_untraced

        def note(self: Store, spec: Any, call: Any) -> Any:
            seen.append(call.unique_key)
            return enqueue(self, spec, call)

        monkeypatch.setattr(Store, "enqueue_untraced", note)
        finish_open_batches(store)
        assert seen == ["a", "b"]

    def test_batches_are_finished_in_transactions_of_their_own(
        self, store: Store, session: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the second batch is finished, no other transaction waits for the unique key of the first batch."""
        make_ended_batch(on_finish=jobs.noop.using(unique_key="a"))
        make_ended_batch(on_finish=jobs.noop.using(unique_key="b"))
        user = session()
        deferred = []
        enqueue = Store.enqueue_untraced

        def enqueue_meanwhile(self: Store, spec: Any, call: Any) -> Any:
            if call.unique_key == "b":
                deferred.append(user(jobs.noop.using(unique_key="a").defer).created)
            return enqueue(self, spec, call)

        monkeypatch.setattr(Store, "enqueue_untraced", enqueue_meanwhile)
        finish_open_batches(store)
        assert deferred == [False]

    def test_a_callback_can_take_a_unique_key_whose_time_is_over(self, store: Store, sent: list[Any]) -> None:
        task = jobs.echo.using(unique_key="nightly", until=timedelta(hours=1))
        task.defer(0)
        [job] = Job.objects.claim(queue_names=["default"], worker_id="w")
        run(job)
        Job.objects.filter(pk=job.pk).update(
            enqueued_at=job.enqueued_at - timedelta(hours=2), run_after=job.enqueued_at - timedelta(hours=2)
        )
        batch_id = make_ended_batch(on_finish=task.s(1))
        finish_open_batches(store)
        assert callbacks_of() == [("echo", [1])]
        assert are_finished(batch_id) == [True]
        assert not [event for event in sent if isinstance(event, CallbackSkipped)]

    def test_a_callback_skipped_because_its_unique_key_is_held_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs.echo.using(unique_key="k").defer(0)
        batch_id = make_ended_batch(on_finish=jobs.echo.using(unique_key="k").s(1))
        with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
            finish_open_batches(Store("default"))
        assert are_finished(batch_id) == [True]
        assert not callbacks_of()
        [line] = [text for text in caplog.messages if text.startswith("callback skipped")]
        assert f"batch={batch_id} callback=on_finish task=tests.app.jobs.echo" in line


class TestLimits:
    def test_one_run_of_a_worker_finishes_a_limited_number_of_batches(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "MOST_BATCHES_FINISHED", 2)
        ids = [make_ended_batch() for _ in range(5)]
        check = BatchCheck(store)
        check.settled({(id, 1): id for id in ids})
        for done in (2, 4, 5):
            assert check.due_at < time.monotonic() + 60
            check.run(time.monotonic())
            assert sum(are_finished(*ids)) == done
        assert check.due_at > time.monotonic() + 1e6

    def test_a_supervisor_goes_on_at_once_with_the_batches_that_are_left(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "MOST_BATCHES_FINISHED", 2)
        ids = [make_ended_batch() for _ in range(5)]
        service = FinishBatches(store)
        for done in (2, 4, 5):
            assert service.due_at <= time.monotonic()
            service.run(time.monotonic())
            assert sum(are_finished(*ids)) == done
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

    Each of the two steps that finds nothing adds `PAUSE_FACTOR` times its duration while other jobs have to wait.
    """

    LOOK, FINISH = 0.25, 0.5

    @pytest.fixture
    def check_results(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[Dependants, FinishResult]:
        """The results of the two statements of a check. By a fake clock, these take LOOK and FINISH seconds."""
        dependants, finish_result, clock = Dependants(), FinishResult(), [100.0]

        def after_seconds(seconds: float, result: Any) -> Any:
            clock[0] += seconds
            return result

        monkeypatch.setattr(services, "admit_dependants", lambda *_: after_seconds(self.LOOK, dependants))
        monkeypatch.setattr(
            services, "finish_batches", lambda _, ids: after_seconds(self.FINISH if ids else 0, finish_result)
        )
        monkeypatch.setattr(services, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        return dependants, finish_result

    def pause_after_check(self, store: Store, *, is_idle: bool = False) -> float:
        check, module = BatchCheck(store, is_idle=lambda: is_idle), vars(services)
        check.settled({(1, 1): 1})
        check.run(module["time"].monotonic())
        check.settled({(2, 1): 1})
        return float(check.due_at - module["time"].monotonic())

    @pytest.mark.usefixtures("check_results")
    def test_a_check_that_finds_nothing_delays_the_next_check(self, store: Store) -> None:
        both = self.LOOK + self.FINISH
        assert self.pause_after_check(store) == pytest.approx((PAUSE_FACTOR + 1) * both)
        assert self.pause_after_check(store, is_idle=True) == pytest.approx(both), "no other job has to wait"

    def test_a_check_that_finishes_a_batch_delays_the_next_check_by_its_own_time(
        self, store: Store, check_results: tuple[Dependants, FinishResult]
    ) -> None:
        check_results[1].finished = 1
        assert self.pause_after_check(store) == pytest.approx(self.LOOK + self.FINISH + PAUSE_FACTOR * self.LOOK)

    def test_the_next_step_of_a_chain_is_not_delayed_by_a_check_of_its_batch(
        self, store: Store, check_results: tuple[Dependants, FinishResult]
    ) -> None:
        check_results[0].admitted["default"] = 1
        check_results[0].batch_ids.add(1)
        assert self.pause_after_check(store) == pytest.approx(self.LOOK)


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

"""`WorkerLoop`: the control loop, in a thread of this process, where connections can be cut and claims lost at will."""

import json
import logging
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.dispatch import Signal
from django.test import override_settings

from django_skipqueue import signals
from django_skipqueue.jobs.registry import THREADS
from django_skipqueue.models import Job
from django_skipqueue.queue.parameters import ExchangeResult
from django_skipqueue.queue.store import Store
from django_skipqueue.values.outcomes import COMPLETED
from django_skipqueue.values.records import Attempt, ClaimedJob, LeaseRef, worker_name
from django_skipqueue.worker import dispatcher, own_connections
from django_skipqueue.worker import worker as worker_module
from django_skipqueue.worker.attempts import event_loop, running_attempt
from django_skipqueue.worker.attempts.running_attempt import RunningJobs
from django_skipqueue.worker.claiming import FEW_QUEUES, Plan
from django_skipqueue.worker.exchange import DELAYED_RESULT_JOBS
from django_skipqueue.worker.protocol import EXIT_BLOCKED, EXIT_CLEAN, EXIT_STUCK, HangingQueues
from django_skipqueue.worker.watchers import ORPHAN_CHECK_DELAYS
from django_skipqueue.worker.worker import WorkerLoop

from ..app import jobs, worker_jobs
from ..app.models import Ledger
from ..app.rows import make_job, make_worker, state
from ..app.sessions import Session
from ..app.waiting import DEADLINE, wait_until
from ..harness.processes import statuses, wait_for_statuses
from ..harness.threads import WorkerThread

store = Store("default")

Start = Callable[..., WorkerThread]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


# Claiming


@pytest.mark.core
def test_jobs_are_run_settled_and_their_results_kept(worker_thread: Start) -> None:
    jobs.add.defer_many([(number, number) for number in range(200)])
    jobs.aadd.defer_many([(number, number) for number in range(200)])
    jobs.fail.defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 400, "failed": 1}
    for job in Job.objects.completed():
        assert job.result == 2 * job.args[0]
        assert (job.attempts, job.locked_at) == (1, None)


@pytest.mark.core
def test_a_job_deferred_to_an_idle_worker_is_picked_up_by_its_notification(worker_thread: Start) -> None:
    worker = worker_thread(poll_interval=HOUR)
    wait_until(lambda: worker.listens)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    jobs.noop.using(queue_name="seen for the first time").defer()
    wait_for_statuses(completed=2)


def test_a_notification_that_comes_with_the_answer_of_another_statement_is_heard(worker_thread: Start) -> None:
    """Whoever reads the answer of the statement also reads the notification, and the socket is no longer readable."""
    beating, deferred = threading.Event(), threading.Event()

    def prepare(worker: WorkerLoop) -> None:
        beat = worker.own_row.run

        def beat_after_a_notification(now: float) -> None:
            if worker.control.listens and not beating.is_set():
                beating.set()
                assert deferred.wait(DEADLINE)
                socket = worker.control.fileno()
                assert socket is not None
                assert select.select([socket], [], [], DEADLINE)[0]
            beat(now)

        worker.own_row.run = beat_after_a_notification  # type: ignore[method-assign]

    worker_thread(prepare=prepare, poll_interval=HOUR, worker_timeout=1.0)
    assert beating.wait(DEADLINE)
    jobs.noop.defer()
    deferred.set()
    wait_for_statuses(completed=1)


def test_reconnecting_finds_jobs_deferred_meanwhile(worker_thread: Start) -> None:
    """No notification has announced the job, and the worker does not know that its queue has jobs."""
    broken, deferred = threading.Event(), threading.Event()

    def prepare(worker: WorkerLoop) -> None:
        listen = worker.control.listen

        def listen_after_the_job() -> bool:
            if broken.is_set():
                assert deferred.wait(DEADLINE)
            return listen()

        worker.control.listen = listen_after_the_job  # type: ignore[method-assign,assignment]

    worker = worker_thread(prepare=prepare, poll_interval=HOUR)
    wait_until(lambda: worker.listens and worker.worker.in_flight.claiming.next_check > time.monotonic(), "it is idle")
    broken.set()
    worker.cut()
    jobs.noop.defer()
    deferred.set()
    wait_for_statuses(completed=1)


def test_without_listen_polling_finds_the_job(worker_thread: Start) -> None:
    worker = worker_thread(poll_interval=0.05, listen=False)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert not worker.listens


def test_a_notification_for_a_queue_of_others_claims_nothing(worker_thread: Start) -> None:
    worker = worker_thread(poll_interval=HOUR, queue_names=("mine",))
    wait_until(lambda: worker.listens)
    jobs.noop.using(queue_name="theirs").defer()
    jobs.noop.using(queue_name="mine").defer()
    wait_for_statuses(completed=1, queued=1)


def test_queues_are_served_in_the_listed_order(worker_thread: Start) -> None:
    for queue_name in ("c", "a", "b"):
        jobs.record.using(queue_name=queue_name).defer_many([{"entry": queue_name}] * 3)
    worker_thread(drain=True, concurrency=1, queue_names=("b", "a")).wait()
    assert "".join(Ledger.objects.order_by("id").values_list("entry", flat=True)) == "bbbaaa"
    assert Job.objects.queued().count() == 3


def test_with_no_list_a_busy_queue_does_not_starve_another(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.using(queue_name="a").defer_many([("a",)] * 20)
    worker_jobs.pass_gate.using(queue_name="b").defer_many([("b",)] * 20)
    worker_thread(concurrency=1, poll_interval=HOUR)
    gates["a"].open()
    gates["b"].open()
    wait_for_statuses(completed=40)
    order = "".join(Job.objects.order_by("started_at", "id").values_list("queue_name", flat=True))
    assert order[:20] not in ("a" * 20, "b" * 20)


def test_jobs_that_hang_in_a_queue_of_their_own_do_not_starve_the_others(worker_thread: Start, gates: Any) -> None:
    """The process that replaces the filled worker begins in any queue, not always in the queue of the hanging jobs."""
    for queue_name in ("a", "b", "c"):
        task = worker_jobs.pass_gate if queue_name == "b" else jobs.record
        task.using(queue_name=queue_name).defer_many([(queue_name,)] * 8)
    started: list[WorkerThread] = []
    while len(started) < 20 and not Ledger.objects.exists():
        started.append(worker := worker_thread(concurrency=4, poll_interval=HOUR, shutdown_timeout=0.0))
        wait_until(lambda worker=worker: len(worker.worker.in_flight.jobs) >= 4 or Ledger.objects.exists())  # type: ignore[misc]
        worker.stop()
        worker.wait()
    gates["b"].open()
    for worker in started:
        worker.worker.pool.stop()
    assert Ledger.objects.exists()


def test_hung_calls_leave_half_of_the_slots_to_other_queues(
    worker_thread: Start, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process whose slots the hung calls fill is replaced, and the next process knows which queue hangs."""
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    hanging_queues = HangingQueues()

    def replace(worker: WorkerLoop) -> None:
        worker.in_flight.claiming.hanging = hanging_queues

    for timeout in (0.2, 60):
        worker_jobs.pass_gate.using(queue_name="a", timeout=timeout, max_attempts=1).defer_many([("hung",)] * 4)
    first = worker_thread(concurrency=4, prepare=replace)
    assert first.wait() == EXIT_STUCK
    jobs.noop.using(queue_name="b").defer_many([()] * 40)
    worker_thread(concurrency=4, prepare=replace)
    wait_for_statuses(failed=4, completed=40, running=2, queued=2)
    jobs.noop.using(queue_name="b").defer_many([()] * 40)
    wait_for_statuses(failed=4, completed=80, running=2, queued=2)


def test_more_queues_than_a_claim_looks_at_are_all_served(worker_thread: Start) -> None:
    for number in range(3 * FEW_QUEUES):
        jobs.noop.using(queue_name=f"queue {number}").defer_many([()] * 2)
    worker_thread(concurrency=1, drain=True, poll_interval=HOUR).wait()
    assert statuses() == {"completed": 6 * FEW_QUEUES}


def test_a_high_priority_that_comes_late_is_next(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.defer("first")
    worker = worker_thread(concurrency=1, poll_interval=HOUR)
    wait_until(lambda: gates["first"].inside)
    jobs.record.defer(entry="low")
    jobs.record.using(priority=50).defer(entry="high")
    cursor = worker.worker.in_flight.claiming.cursor
    wait_until(lambda: cursor.due_at <= time.monotonic(), "the next claim starts from the front")
    gates["first"].open()
    wait_for_statuses(completed=3)
    assert list(Ledger.objects.order_by("id").values_list("entry", flat=True)) == ["high", "low"]


def test_max_jobs_stops_it_and_leaves_the_rest(worker_thread: Start) -> None:
    jobs.noop.defer_many([()] * 30)
    assert worker_thread(max_jobs=17).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 17, "queued": 13}


# Look-ahead


@pytest.mark.parametrize("kinds", [("pass_gate",), ("apass_gate",), ("pass_gate", "apass_gate")])
def test_claiming_ahead_never_exceeds_the_concurrency_of_a_kind(
    worker_thread: Start, gates: Any, kinds: tuple[str, ...]
) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 300)
    for _ in range(20):
        for kind in kinds:
            getattr(worker_jobs, kind).defer(kind)
    worker_thread(concurrency=3)
    wait_until(lambda: sum(gates[kind].inside for kind in kinds) >= 3)
    for kind in kinds:
        gates[kind].open()
    wait_for_statuses(completed=300 + 20 * len(kinds))
    assert max(gates[kind].most for kind in kinds) <= 3


def test_a_long_job_keeps_no_job_from_another_worker(worker_thread: Start, gates: Any) -> None:
    """The first worker has claimed ahead when its threads meet long jobs. It releases the jobs that wait."""
    jobs.noop.using(priority=2).defer_many([()] * 300)
    worker_jobs.pass_gate.using(priority=1).defer_many([("long",)] * 2)
    jobs.noop.using(priority=0).defer_many([()] * 300)
    first = worker_thread(concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["long"].inside == 2)
    wait_until(lambda: Job.objects.running().count() == 2, "all but the long jobs are given back or done")
    worker_thread(concurrency=2, poll_interval=HOUR)
    wait_for_statuses(completed=600, running=2)
    assert Job.objects.running().filter(locked_by=first.id).count() == 2
    assert not Job.objects.exclude(task__endswith="pass_gate").exclude(attempts=1).exists()


def test_jobs_that_a_coroutine_keeps_from_beginning_are_run_by_another_worker(worker_thread: Start, gates: Any) -> None:
    worker_jobs.ablock_loop.using(priority=1).defer("g")
    jobs.anoop.defer_many([()] * 8)
    blocked = worker_thread(concurrency=4)
    wait_until(lambda: gates["g"].inside)
    wait_until(lambda: Job.objects.running().count() == 1, "those that have not begun are released")
    wait_until(lambda: not blocked.worker.shared.slots, "it offers no slot")
    jobs.noop.using(queue_name="for threads").defer()
    wait_until(lambda: Job.objects.completed().filter(task=jobs.noop.name).exists(), "its threads go on")
    worker_thread(concurrency=4)
    wait_for_statuses(completed=9, running=1)
    assert not Job.objects.exclude(attempts=1).exists()
    gates["g"].open()
    wait_for_statuses(completed=10)


def test_a_long_job_lets_short_ones_pass_in_the_other_slots(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.using(priority=1).defer("long")
    jobs.noop.defer_many([()] * 500)
    worker_thread(concurrency=2, poll_interval=HOUR)
    wait_for_statuses(completed=500, running=1)


# Drain


def test_drain_stops_when_nothing_is_left(worker_thread: Start) -> None:
    assert worker_thread(drain=True, poll_interval=HOUR).wait() == EXIT_CLEAN


@pytest.mark.core
@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_drain_runs_what_is_due_what_is_retried_at_once_and_what_they_defer(
    worker_thread: Start, queue_names: tuple[str, ...]
) -> None:
    make_job("scheduled", run_after=timedelta(minutes=-1))
    later = make_job("scheduled", run_after=timedelta(hours=1))
    jobs.fail_times.defer(5)
    assert worker_thread(drain=True, poll_interval=HOUR, queue_names=queue_names).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 2, "scheduled": 1}
    assert Job.objects.scheduled().get().pk == later.pk


@pytest.mark.parametrize("queue_names", [(), ("default",)])
@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_drain_waits_for_a_job_that_somebody_has_locked(
    worker_thread: Start, session: Callable[[], Session], status: str, queue_names: tuple[str, ...]
) -> None:
    job = make_job(status, run_after=timedelta(minutes=-1))
    other = session()
    other.begin()
    other(lambda: list(Job.objects.select_for_update().filter(pk=job.pk)))
    looks = threading.Semaphore(0)
    worker = worker_thread(drain=True, queue_names=queue_names, prepare=lambda worker: _count_looks(worker, looks))
    for _ in range(3):
        assert looks.acquire(timeout=DEADLINE)
    assert worker.code is None
    other.commit()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


def test_drain_waits_for_a_job_that_could_not_be_released(worker_thread: Start, session: Callable[[], Session]) -> None:
    """The claim of another worker has just read the row, and keeps it locked until the commit."""
    id = "00000000-0000-0000-0000-000000000003"
    job = make_job("running", locked_by=id, lease=1, attempts=1)
    other = session()
    other.begin()
    other(lambda: list(Job.objects.select_for_update().filter(pk=job.pk)))
    looks = threading.Semaphore(0)
    worker = worker_thread(drain=True, id=id, worker_timeout=HOUR, prepare=lambda worker: _count_looks(worker, looks))
    for _ in range(3):
        assert looks.acquire(timeout=DEADLINE)
    assert worker.code is None
    other.commit()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


@pytest.fixture
def no_retries(transactional_db: None) -> Iterator[None]:
    """A trigger refuses each UPDATE that makes a job scheduled again, as PostgreSQL refuses an invalid value."""
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE skipqueue_job"
            " ADD CONSTRAINT no_retries CHECK (attempts = 0 OR status NOT IN ('scheduled', 'queued')) NOT VALID"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT no_retries")


@pytest.mark.usefixtures("no_retries")
@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_a_refused_outcome_neither_blocks_its_batch_nor_ends_a_drain(
    worker_thread: Start, queue_names: tuple[str, ...]
) -> None:
    for number in range(400):
        Job.objects.enqueue("backoff.negative" if number % 50 == 25 else "tests.app.jobs.noop")
    assert worker_thread(drain=True, poll_interval=HOUR, queue_names=queue_names).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 392, "failed": 8}
    assert not Job.objects.failed().filter(last_error="").exists()


# Outcomes


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("inf", "scheduled"),  # in a thousand years
        ("huge", "scheduled"),
        ("nan", "failed"),
        ("negative", "failed"),
        ("none", "scheduled"),  # by the default backoff
        ("text", "scheduled"),
        ("raises", "scheduled"),
    ],
)
def test_whatever_a_backoff_returns_the_job_ends_with_an_error_that_tells(
    worker_thread: Start, name: str, status: str
) -> None:
    Job.objects.enqueue(f"backoff.{name}", max_attempts=2)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job = Job.objects.get()
    assert job.status == status
    assert job.last_error
    assert job.errors


@pytest.mark.parametrize("kind", sorted(jobs.UNSTORABLE))
def test_a_result_that_cannot_be_stored_fails_the_job_with_a_clear_error(worker_thread: Start, kind: str) -> None:
    jobs.return_unstorable.defer(kind)
    jobs.noop.defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1, "failed": 1}
    assert "cannot be kept" in Job.objects.failed().get().last_error


@pytest.mark.core
def test_errors_of_every_kind_are_written(worker_thread: Start) -> None:
    jobs.raise_unstorable.defer()
    worker_jobs.raise_unprintable.defer()
    worker_jobs.raise_long.defer(10_000_000)
    for kind in worker_jobs.BASE_EXCEPTIONS:
        worker_jobs.raise_base_exception.defer(kind)
        worker_jobs.araise_base_exception.defer(kind)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert set(statuses()) == {"failed"}
    for job in Job.objects.all():
        assert job.last_error
        assert len(json.dumps(job.errors)) < 40_000


def test_a_long_result_is_kept_whole(worker_thread: Start) -> None:
    worker_jobs.return_long.defer(1_000_000)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert len(Job.objects.get().result or "") == 1_000_000


def test_an_unknown_task_is_put_off_at_no_attempt_and_fails_after_the_grace(worker_thread: Start) -> None:
    job = Job.objects.enqueue("shop.jobs.soon", max_attempts=1)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("scheduled", 0)
    assert job.unknown_since is not None
    Job.objects.update(run_after="2020-01-01T00:00Z")
    with override_settings(SKIPQUEUE={"UNKNOWN_TASK_GRACE": 0.000001}):
        assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("failed", 1)
    assert "shop.jobs.soon" in job.last_error
    assert "Is the app of shop.jobs in INSTALLED_APPS" in job.last_error


# The fence


def test_an_outcome_whose_lease_has_passed_on_is_reported_and_not_written(
    worker_thread: Start, gates: Any, sent: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    lost, completed = sent(signals.lease_lost), sent(signals.job_completed)
    worker_jobs.pass_gate.using(max_attempts=1).defer("g")
    worker = worker_thread(concurrency=1, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside)
    assert len(store.recover(worker_ids=[worker.id], reason="for the test")) == 1
    gates["g"].open()
    wait_until(lambda: lost)
    job = Job.objects.get()
    assert (job.status, job.last_error) == ("failed", "WorkerDied: for the test")
    assert lost[0]["attempt"].job.id == job.pk
    assert not completed


def test_a_job_that_comes_back_to_the_worker_that_still_runs_it_is_settled_once(
    worker_thread: Start, gates: Any, sent: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    """A supervisor recovers the job, and the worker claims it again: two attempts of one job, with two leases."""
    lost, completed = sent(signals.lease_lost), sent(signals.job_completed)
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 1)
    store.recover(worker_ids=[worker.id])
    wait_until(lambda: gates["g"].inside == 2)
    gates["g"].open()
    wait_until(lambda: lost and completed)
    assert statuses() == {"completed": 1}
    assert (len(lost), len(completed)) == (1, 1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert worker.worker.in_flight.jobs == {}


def test_an_event_is_sent_after_its_outcome_is_committed(worker_thread: Start) -> None:
    seen: list[str] = []

    def receive(attempt: Any, **_: Any) -> None:
        seen.append(Job.objects.get(pk=attempt.job.id).status)

    connected = (signals.job_completed, signals.job_failed, signals.job_retrying, signals.job_discarded)
    for signal in connected:
        signal.connect(receive)
    try:
        jobs.noop.defer()
        jobs.discard.defer()
        jobs.return_unstorable.defer("nan")
        jobs.ask_for_retry.defer(HOUR)
        wait_until(lambda: worker_thread(drain=True).wait() == EXIT_CLEAN)
    finally:
        for signal in connected:
            signal.disconnect(receive)
    assert sorted(seen) == ["completed", "discarded", "failed", "scheduled"]


@pytest.mark.parametrize("kind", ["slow", "raises"])
def test_a_receiver_harms_no_job(worker_thread: Start, kind: str) -> None:
    release = threading.Event()

    def receive(**_: Any) -> None:
        if kind == "raises":
            raise SystemExit("in a receiver")
        release.wait(DEADLINE)

    signals.job_completed.connect(receive)
    try:
        jobs.noop.defer_many([()] * 500)
        worker_thread()
        wait_for_statuses(completed=500)
    finally:
        release.set()
        signals.job_completed.disconnect(receive)


# Lost connections


def test_an_idle_worker_whose_connection_is_cut_opens_another_and_hears_of_jobs_again(worker_thread: Start) -> None:
    worker = worker_thread(poll_interval=HOUR)
    for number in range(3):
        wait_until(lambda: worker.listens)
        jobs.noop.defer()
        wait_for_statuses(completed=number + 1)
        worker.cut()
    wait_until(lambda: worker.listens)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN


def test_connections_cut_again_and_again_under_load_lose_and_double_nothing(worker_thread: Start) -> None:
    jobs.record.using(max_attempts=1).defer_many([{"entry": str(number)} for number in range(600)])
    worker = worker_thread(poll_interval=HOUR, worker_timeout=1.0)
    for done in (50, 200, 350):
        wait_until(lambda done=done: Job.objects.completed().count() >= done)  # type: ignore[misc]
        worker.cut()
    wait_until(lambda: Job.objects.unfinished().count() == 0, "all are settled", deadline=2 * DEADLINE)
    assert statuses() == {"completed": 600}
    assert sorted(Ledger.objects.values_list("entry", flat=True)) == sorted(map(str, range(600)))
    worker.stop()
    assert worker.wait() == EXIT_CLEAN


def test_an_outcome_is_kept_until_the_database_takes_it(worker_thread: Start, gates: Any) -> None:
    failures = threading.Event()
    failures.set()
    attempts: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Failing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and failures.is_set():
                    attempts.append(1)
                    raise OperationalError("the server closed the connection unexpectedly")
                return super().exchange(settlements, **options)

        _use(worker, Failing)

    jobs.record.using(max_attempts=1).defer(entry="once")
    worker_thread(prepare=prepare, poll_interval=HOUR)
    wait_until(lambda: len(attempts) >= 2)
    assert statuses() == {"running": 1}
    failures.clear()
    wait_for_statuses(completed=1)
    assert Ledger.objects.count() == 1


def test_a_claim_whose_answer_was_lost_is_released_and_run(worker_thread: Start) -> None:
    lost: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Losing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                answer = super().exchange(settlements, **options)
                if answer.count_claimed() and not lost:
                    lost.extend(job.id for job in answer.claimed())
                    raise OperationalError("the answer never came")
                return answer

        _use(worker, Losing)

    jobs.record.using(max_attempts=1).defer_many([{"entry": str(number)} for number in range(3)])
    make_worker(id="00000000-0000-0000-0000-000000000001")
    worker_thread(prepare=prepare, id="00000000-0000-0000-0000-000000000001", poll_interval=HOUR)
    wait_for_statuses(completed=3)
    assert lost
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert Ledger.objects.count() == 3


@pytest.mark.parametrize("after", range(len(ORPHAN_CHECK_DELAYS) - 1))
def test_a_claim_committed_on_an_abandoned_connection_is_found(worker_thread: Start, after: int) -> None:
    """The statement was still under way when the worker looked for orphans."""
    id = "00000000-0000-0000-0000-000000000002"

    def prepare(worker: WorkerLoop) -> None:
        class Late(Store):
            def release_orphans(self, worker_id: str, **options: Any) -> Any:
                released = super().release_orphans(worker_id, **options)
                if len(looked) == after:
                    jobs.noop.using(queue_name="late").defer()
                    Job.objects.claim(queue_names=["late"], limit=1, worker_id=worker_id)
                looked.append(len(released))
                return released

        _use(worker, Late)
        worker.in_flight.orphan_check.expect(0.0)

    looked: list[int] = []
    worker_thread(prepare=prepare, id=id, worker_timeout=2.0, poll_interval=HOUR, queue_names=("late",))
    wait_for_statuses(completed=1)
    assert looked[: after + 2] == [0] * (after + 1) + [1]


def test_an_answer_lost_with_an_outcome_in_it_is_not_reported_twice(
    worker_thread: Start, sent: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    completed = sent(signals.job_completed)
    lost: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Losing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                answer = super().exchange(settlements, **options)
                if settlements and not lost:
                    lost.append(1)
                    raise OperationalError("the answer never came")
                return answer

        _use(worker, Losing)

    jobs.record.using(max_attempts=1).defer(entry="once")
    worker = worker_thread(prepare=prepare, poll_interval=HOUR)
    wait_for_statuses(completed=1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert len(completed) <= 1
    assert worker.worker.in_flight.jobs == {}


# Stopping


def test_stopping_finishes_what_runs_and_releases_what_has_not_started(worker_thread: Start, gates: Any) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 300)
    worker_jobs.pass_gate.defer_many([("g",)] * 50)
    make_worker(id="00000000-0000-0000-0000-000000000003")
    worker = worker_thread(id="00000000-0000-0000-0000-000000000003", concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 2)
    worker.stop()
    wait_until(lambda: Job.objects.running().count() == 2, "what has not started is released")
    gates["g"].open()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 302, "queued": 48}
    assert set(Job.objects.queued().values_list("attempts", "locked_by")) == {(0, "")}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM skipqueue_worker")
        assert cursor.fetchone() == (0,)


def test_a_second_command_releases_what_runs_at_once_and_charges_nothing(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=HOUR)
    wait_until(lambda: gates["g"].inside == 1)
    worker.stop()
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN
    job = Job.objects.get()
    assert (job.status, job.attempts, job.locked_by) == ("queued", 0, "")
    assert job.lease == 2


def test_after_the_shutdown_timeout_what_still_runs_is_released(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.defer("g")
    worker_jobs.apass_gate.defer("h")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1 and gates["h"].inside == 1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"queued": 2}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_worker_whose_supervisor_is_gone_stops_by_itself(
    worker_thread: Start, gates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker_jobs.pass_gate.defer("g")
    with caplog.at_level(logging.ERROR, logger="django_skipqueue"):
        worker = worker_thread(poll_interval=HOUR)
        wait_until(lambda: gates["g"].inside == 1)
        worker.abandon()
        gates["g"].open()
        assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}
    assert "supervisor gone" in caplog.text


def test_without_a_supervisor_it_is_done_before_its_lease_is(worker_thread: Start, gates: Any) -> None:
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=HOUR, worker_timeout=0.2)
    wait_until(lambda: gates["g"].inside == 1)
    worker.abandon()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"queued": 1}


def test_the_end_of_a_worker_is_reported_before_its_jobs_are_released(worker_thread: Start, gates: Any) -> None:
    """After the release another worker may run the jobs, so this process must end soon."""
    seen: list[str] = []

    def receive(**_: Any) -> None:
        seen.append(Job.objects.get().status)

    worker_jobs.pass_gate.defer("g")
    signals.worker_stopped.connect(receive)
    try:
        worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
        wait_until(lambda: gates["g"].inside == 1)
        worker.stop()
        assert worker.wait() == EXIT_CLEAN
    finally:
        signals.worker_stopped.disconnect(receive)
    assert seen == ["running"]
    assert statuses() == {"queued": 1}


def test_an_outcome_that_comes_while_the_end_is_reported_is_written_and_reported(
    worker_thread: Start, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LAST_EVENTS_AFTER_RELEASE", DEADLINE)
    has_ended = threading.Event()
    told_before_the_end: list[bool] = []

    def finish_job(**_: Any) -> None:
        gates["g"].open()
        wait_until(lambda: worker.worker.pool.finished)

    def take_a_while(**_: Any) -> None:
        told_before_the_end.append(not has_ended.wait(0.2))

    worker_jobs.pass_gate.defer("g")
    signals.worker_stopped.connect(finish_job)
    signals.job_completed.connect(take_a_while)
    try:
        worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
        wait_until(lambda: gates["g"].inside == 1)
        worker.stop()
        assert worker.wait() == EXIT_CLEAN
        has_ended.set()
        wait_until(lambda: told_before_the_end)
    finally:
        signals.worker_stopped.disconnect(finish_job)
        signals.job_completed.disconnect(take_a_while)
    assert statuses() == {"completed": 1}
    assert told_before_the_end == [True]


def test_what_still_runs_when_the_time_is_over_is_charged_for_no_end(worker_thread: Start, gates: Any) -> None:
    """Also if the process is killed before it has released the job."""
    running_jobs = RunningJobs(2)
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05, concurrency=1, running_jobs=running_jobs)
    wait_until(lambda: gates["g"].inside == 1)
    assert running_jobs.job_ids() == [Job.objects.get().pk]
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert running_jobs.job_ids() == []


def test_a_worker_whose_event_loop_is_blocked_is_replaced(
    worker_thread: Start, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "STUCK_AFTER", 0.05)
    worker_jobs.aleave_blocking_background.defer("never")
    worker = worker_thread(poll_interval=HOUR)
    wait_until(lambda: gates["never"].inside == 1)
    jobs.anoop.defer()
    assert worker.wait() == EXIT_BLOCKED
    assert statuses() == {"completed": 1, "queued": 1}


# Rows that somebody keeps locked


@pytest.fixture
def locker(worker_thread: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Another session, which may lock rows. Workers wait for a locked row only for a moment."""
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c lock_timeout=200ms")
    session = Session()
    yield session
    session.close()


def lock(locker: Session, *jobs: Job) -> None:
    """Lock the rows of these jobs until the session commits."""
    locker.begin()
    ids = [job.pk for job in jobs]
    locker(lambda: list(Job.objects.select_for_update().filter(pk__in=ids)))


def test_a_locked_row_keeps_no_other_outcome_and_no_claim(
    worker_thread: Start, gates: Any, locker: Session, caplog: pytest.LogCaptureFixture
) -> None:
    jobs_held = [worker_jobs.pass_gate.defer("g") for _ in range(3)]
    worker_thread(poll_interval=HOUR, concurrency=3)
    wait_until(lambda: gates["g"].inside == 3)
    lock(locker, jobs_held[1])
    with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
        gates["g"].open()
        wait_for_statuses(completed=2, running=1)
        for _ in range(3):
            worker_jobs.see.defer_many([(1,)] * 3)  # one job for each slot: the locked row takes no slot
            wait_until(lambda: not Job.objects.queued().exists())
        wait_for_statuses(completed=11, running=1)
    assert f"outcomes waiting worker=w count=1 first_id={jobs_held[1].pk}" in caplog.text
    assert caplog.text.count("database lost") == 1
    locker.commit()
    wait_for_statuses(completed=12)
    assert set(Job.objects.values_list("attempts", "lease")) == {(1, 2)}


def test_a_worker_with_the_only_slot_goes_on_beside_a_locked_row(
    worker_thread: Start, gates: Any, locker: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_not_ahead(worker: WorkerLoop) -> None:
        monkeypatch.setattr(worker.in_flight.claiming.capacities[THREADS], "prefetch", lambda now: 0)

    held = worker_jobs.pass_gate.defer("g")
    worker_thread(poll_interval=HOUR, concurrency=1, prepare=look_not_ahead)
    wait_until(lambda: gates["g"].inside == 1)
    lock(locker, held)
    gates["g"].open()
    for number in (1, 2):
        jobs.noop.defer()
        wait_for_statuses(completed=number, running=1)
    locker.commit()
    wait_for_statuses(completed=3)


class WatchedReleases(Store):
    """A store that notes the ids of released jobs, a list for each statement."""

    seen: list[list[int]]

    def release(self, leases: Iterable[LeaseRef], *, interrupted: bool = False, later: bool = False) -> set[int]:
        leases = list(leases)
        self.seen.append([id for id, _ in leases])
        return super().release(leases, interrupted=interrupted, later=later)


def watch_releases(worker: WorkerLoop) -> None:
    WatchedReleases.seen = []
    _use(worker, WatchedReleases)


def test_a_job_that_was_running_at_the_end_keeps_which_worker_gave_it_up(worker_thread: Start, gates: Any) -> None:
    job = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, concurrency=1, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1)
    before = state(job)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    (noted,) = (row := state(job))["operations"]
    assert (row["status"], row["attempts"], row["started_at"]) == ("queued", 0, None)
    assert (noted["verb"], noted["by"], noted["attempts"]) == ("release", worker_name(before["locked_by"]), 1)
    assert datetime.fromisoformat(noted["since"]) == before["started_at"]
    gates["g"].open()


def test_at_the_end_a_locked_row_keeps_no_other_from_being_released(
    worker_thread: Start, gates: Any, locker: Session, caplog: pytest.LogCaptureFixture
) -> None:
    held = [worker_jobs.pass_gate.defer("g") for _ in range(3)]
    worker = worker_thread(poll_interval=HOUR, concurrency=3, shutdown_timeout=0.05, prepare=watch_releases)
    wait_until(lambda: gates["g"].inside == 3)
    lock(locker, held[1])
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    locker.commit()
    assert statuses() == {"queued": 2, "running": 1}
    assert [job.attempts for job in Job.objects.queued()] == [0, 0]
    # Released jobs may run elsewhere at once: after the release, this process must wait for nobody.
    assert WatchedReleases.seen == [[held[1].pk], [held[0].pk, held[2].pk]]
    assert 'count=2 reason="they still ran' in caplog.text


def test_at_the_end_it_waits_for_a_transaction_that_ends(
    worker_thread: Start, gates: Any, locker: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_connections, "TIMEOUTS", f"-c lock_timeout={DEADLINE}s")
    held = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1)
    lock(locker, held)
    worker.stop()
    wait_until(lambda: waits_for_lock(worker), "the worker waits for the row")
    locker.commit()
    assert worker.wait() == EXIT_CLEAN
    assert [(job.status, job.attempts) for job in Job.objects.all()] == [("queued", 0)]


def test_what_is_finished_is_not_released_to_run_again_because_its_row_is_locked(
    worker_thread: Start, gates: Any, locker: Session
) -> None:
    held = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05, prepare=watch_releases, concurrency=1)
    wait_until(lambda: gates["g"].inside == 1)
    lock(locker, held)
    gates["g"].open()
    wait_until(lambda: worker.worker.in_flight.pending.aside)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    locker.commit()
    assert WatchedReleases.seen == []
    assert statuses() == {"running": 1}  # its supervisor sees to it


def test_at_the_end_it_is_seen_at_once_that_a_row_is_free_again(
    worker_thread: Start, gates: Any, locker: Session
) -> None:
    held = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.0, concurrency=1)
    wait_until(lambda: gates["g"].inside == 1)
    lock(locker, held)
    gates["g"].open()
    pending = worker.worker.in_flight.pending
    wait_until(lambda: pending.aside)
    looked = pending.next_check
    wait_until(lambda: pending.next_check != looked)  # the next one is in a second
    locker.commit()
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


def test_a_locked_job_that_has_not_begun_is_released_when_it_is_free(
    worker_thread: Start, gates: Any, locker: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 2

    def prepare(worker: WorkerLoop) -> None:
        capacity = worker.in_flight.claiming.capacities[THREADS]
        monkeypatch.setattr(capacity, "prefetch", lambda now: kept)
        monkeypatch.setattr(capacity, "surplus", lambda unfinished, now: max(unfinished - 1 - kept, 0))

    worker_jobs.pass_gate.defer("g")
    worker_thread(poll_interval=HOUR, concurrency=1, worker_timeout=5.0, prepare=prepare, queue_names=["default"])
    wait_until(lambda: gates["g"].inside == 1)
    waiting = [jobs.noop.defer(), jobs.noop.defer()]
    wait_for_statuses(running=3)
    lock(locker, waiting[0])
    kept = 0
    # A worker, also this one, may claim the released job again at once.
    wait_until(lambda: Job.objects.get(pk=waiting[1].pk).lease > 1)
    locker.commit()
    wait_until(lambda: Job.objects.get(pk=waiting[0].pk).lease > 1)


def waits_for_lock(worker: WorkerThread) -> bool:
    """Whether a statement of the worker's control connection waits for a lock."""
    raw = worker.worker.control.wrapper.connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [raw.info.backend_pid if raw else 0])
        return bool(cursor.fetchone()[0])


# An exchange that begins before the result of the last exchange is applied


class Watching(Store):
    """A store that calls `before` and `after` around each exchange that begins before the last result is applied."""

    worker: WorkerLoop
    overlaps: list[bool]

    def exchange(self, *arguments: Any, **options: Any) -> Any:
        overlapping = not self.worker.in_flight.exchanges.buffer.is_empty
        if overlapping:
            self.before()
        answer = super().exchange(*arguments, **options)
        if overlapping:
            self.overlaps.append(self.worker.in_flight.exchanges.buffer.is_empty)
            return self.after(answer)
        return answer

    def before(self) -> None:
        pass

    def after(self, answer: ExchangeResult) -> ExchangeResult:
        return answer


def _watch(store: type[Watching]) -> Callable[[WorkerLoop], None]:
    def prepare(worker: WorkerLoop) -> None:
        store.worker = worker
        store.overlaps = []
        _use(worker, store)

    return prepare


BACKLOG = 5_000


def test_the_first_result_is_applied_while_the_second_exchange_is_on_its_way(worker_thread: Start) -> None:
    jobs.noop.defer_many([()] * BACKLOG)
    worker = worker_thread(prepare=_watch(Watching), drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert Watching.overlaps
    assert all(Watching.overlaps)
    assert worker.worker.jobs_done == Job.objects.completed().count() == BACKLOG


def test_the_first_result_is_applied_although_the_second_exchange_did_not_come_to_it(worker_thread: Start) -> None:
    class Hurried(Watching):
        def exchange(self, *arguments: Any, meanwhile: Any = None, **options: Any) -> Any:
            return super().exchange(*arguments, **options)

    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(BACKLOG)])
    assert worker_thread(prepare=_watch(Hurried), drain=True).wait() == EXIT_CLEAN
    assert Hurried.overlaps
    assert sorted(worker_jobs.seen) == list(range(BACKLOG)), "each has run once"


@pytest.mark.parametrize("number", [DELAYED_RESULT_JOBS - 1, DELAYED_RESULT_JOBS])
def test_an_answer_with_many_jobs_waits_for_the_next_exchange(worker_thread: Start, number: int) -> None:
    """So PostgreSQL works while the jobs are decoded and run. If keys have limits, a claim seldom reaches its limit."""
    waiting: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        worker.in_flight.exchanges.exchange(Plan(0.0, settles=True, claims=10 * number))
        waiting.append(worker.in_flight.exchanges.buffer.claimed)

    jobs.noop.defer_many([()] * number)
    worker = worker_thread(prepare=prepare, drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert waiting == [number if number >= DELAYED_RESULT_JOBS else 0]
    assert worker.worker.jobs_done == Job.objects.completed().count() == number


def test_who_has_too_much_to_write_claims_nothing(worker_thread: Start) -> None:
    rooms: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        worker.in_flight.may_claim = lambda now: True  # before its first heartbeat
        for has_more in (True, False):
            worker.in_flight.pending.has_more = has_more
            rooms.append(worker.in_flight.room(time.monotonic()))

    worker_thread(prepare=prepare, concurrency=3)
    assert rooms == [0, 3]


def test_a_look_for_orphans_knows_the_jobs_of_a_result(worker_thread: Start) -> None:
    class Searching(Watching):
        def before(self) -> None:
            self.worker.in_flight.orphan_check.expect(time.monotonic())

        def release_orphans(self, *arguments: Any, **options: Any) -> set[int]:
            found.append(super().release_orphans(*arguments, **options))
            return found[-1]

    found: list[set[int]] = []
    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(BACKLOG)])
    assert worker_thread(prepare=_watch(Searching), drain=True).wait() == EXIT_CLEAN
    assert found
    assert not set().union(*found)
    assert sorted(worker_jobs.seen) == list(range(BACKLOG)), "each has run once"


def test_an_error_of_the_second_exchange_does_not_harm_what_the_first_has_brought(worker_thread: Start) -> None:
    broken: list[bool] = []

    class Breaking(Watching):
        def before(self) -> None:
            if not broken:
                broken.append(True)
                raise OperationalError("the server closed the connection unexpectedly")

    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(BACKLOG)])
    assert worker_thread(prepare=_watch(Breaking), drain=True).wait() == EXIT_CLEAN
    assert broken
    assert sorted(worker_jobs.seen) == list(range(BACKLOG)), "each has run once"
    assert set(Job.objects.values_list("status", "attempts")) == {("completed", 1)}


def test_the_jobs_of_a_result_are_released_by_a_worker_that_stops(worker_thread: Start) -> None:
    brought: list[int] = []

    class Stopping(Watching):
        def after(self, answer: ExchangeResult) -> ExchangeResult:
            rows = answer.claimed_rows if isinstance(answer.claimed_rows, list) else answer.claimed_rows.fetchall()
            if len(rows) >= DELAYED_RESULT_JOBS:  # the jobs of a smaller one begin at once
                worker_jobs.stops.set()
                self.worker.stop()
                brought.extend(id for id, *_ in rows)
            return replace(answer, claimed_rows=rows)

        def release(self, *arguments: Any, **options: Any) -> Any:
            released = super().release(*arguments, **options)
            worker_jobs.goes_on.set()
            return released

    worker_jobs.stops.clear()
    worker_jobs.goes_on.clear()
    worker_jobs.wait_while_it_stops.defer_many([()] * BACKLOG)
    assert worker_thread(prepare=_watch(Stopping)).wait() == EXIT_CLEAN
    assert brought
    unfinished = Job.objects.filter(pk__in=brought).exclude(status="completed")
    states = set(unfinished.values_list("status", "attempts", "locked_by"))
    assert states == {("queued", 0, "")}, "no more have begun than the worker has threads"


def test_a_lease_that_is_known_to_be_lost_is_reported_by_a_worker_that_stops(
    worker_thread: Start, sent: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    lost = sent(signals.lease_lost)
    attempt = Attempt(ClaimedJob(1, 1, "t", "default", "[]", "{}", 1, 10, 0, 0.0, 0.0, "{}"), COMPLETED, 1.0, 2.0, "w")

    def prepare(worker: WorkerLoop) -> None:
        worker.in_flight.exchanges.reports.lost.append(attempt)
        worker.stop()

    assert worker_thread(prepare=prepare).wait() == EXIT_CLEAN
    assert [event["attempt"] for event in lost] == [attempt]


def test_the_jobs_of_a_result_are_run_while_the_database_is_gone(
    worker_thread: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.worker.control_connection.FIRST_REOPEN_DELAY", HOUR)
    monkeypatch.setattr("django_skipqueue.worker.control_connection.LONGEST_REOPEN_DELAY", HOUR)
    broken = threading.Event()

    class Breaking(Watching):
        def before(self) -> None:
            if not broken.is_set():
                broken.set()
                raise OperationalError("the server closed the connection unexpectedly")

    jobs.noop.defer_many([()] * BACKLOG)
    worker = worker_thread(prepare=_watch(Breaking))
    wait_until(broken.is_set)
    wait_until(lambda: worker.worker.in_flight.exchanges.buffer.is_empty)
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN


def test_a_drain_whose_last_claim_fails_claims_again(worker_thread: Start) -> None:
    failures = [OperationalError("the server closed the connection unexpectedly")]

    def prepare(worker: WorkerLoop) -> None:
        something_runnable = worker.has_runnable_jobs

        def fail_once() -> bool:
            if failures:
                raise failures.pop()
            return something_runnable()

        worker.has_runnable_jobs = fail_once  # type: ignore[method-assign]

    jobs.noop.defer()
    assert worker_thread(prepare=prepare, drain=True, poll_interval=HOUR).wait() == EXIT_CLEAN
    assert not failures


@pytest.mark.usefixtures("no_retries")
def test_an_outcome_that_is_refused_in_the_second_exchange_harms_no_other(
    worker_thread: Start, sent: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    completed, failed, retrying = sent(signals.job_completed), sent(signals.job_failed), sent(signals.job_retrying)
    worker_jobs.seen.clear()
    worker_jobs.see_or_never.defer_many([(number,) for number in range(BACKLOG)])
    worker = worker_thread(prepare=_watch(Watching), drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert Watching.overlaps
    assert statuses() == {"completed": BACKLOG - BACKLOG // 500, "failed": BACKLOG // 500}
    assert len(worker_jobs.seen) == len(completed) == BACKLOG - BACKLOG // 500, "each has run once"
    assert len(failed) == BACKLOG // 500
    assert not retrying
    assert worker.worker.in_flight.jobs == {}


def test_max_jobs_counts_the_jobs_of_a_result(worker_thread: Start) -> None:
    jobs.noop.defer_many([()] * BACKLOG)
    assert worker_thread(prepare=_watch(Watching), max_jobs=BACKLOG - 1234).wait() == EXIT_CLEAN
    assert Watching.overlaps
    assert statuses() == {"completed": BACKLOG - 1234, "queued": 1234}


def test_an_outcome_known_at_the_timeout_uses_another_connection(worker_thread: Start) -> None:
    tried: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Failing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements:
                    tried.append(1)
                    worker.stop(0)
                    if len(tried) <= 2:
                        raise OperationalError("the server closed the connection unexpectedly")
                return super().exchange(settlements, **options)

        _use(worker, Failing)

    jobs.noop.defer()
    assert worker_thread(prepare=prepare, poll_interval=HOUR).wait() == EXIT_CLEAN
    assert len(tried) == 3
    assert statuses() == {"completed": 1}


def test_jobs_that_finish_during_an_outage_do_not_make_it_try_more_often(worker_thread: Start) -> None:
    tried: list[int] = []
    failures = threading.Event()
    failures.set()

    def prepare(worker: WorkerLoop) -> None:
        class Failing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and failures.is_set():
                    tried.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use(worker, Failing)
        capacity = worker.in_flight.claiming.capacities[THREADS]
        capacity.prefetch = lambda now: 200  # type: ignore[method-assign]
        capacity.surplus = lambda unfinished, now: 0  # type: ignore[method-assign]

    worker_jobs.seen.clear()
    worker_jobs.see_slowly.defer_many([(number,) for number in range(200)])
    worker_thread(prepare=prepare, concurrency=1, poll_interval=HOUR)
    wait_until(lambda: len(worker_jobs.seen) >= 50)
    assert len(tried) < 10
    failures.clear()
    wait_for_statuses(completed=200)
    assert sorted(worker_jobs.seen) == list(range(200)), "each has run once"


def test_a_timeout_is_kept_during_an_outage(worker_thread: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_skipqueue.worker.control_connection.FIRST_REOPEN_DELAY", HOUR)
    monkeypatch.setattr("django_skipqueue.worker.control_connection.LONGEST_REOPEN_DELAY", HOUR)
    tried: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Failing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and not tried:
                    tried.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use(worker, Failing)

    worker_jobs.stay.defer()
    jobs.noop.defer()
    worker = worker_thread(prepare=prepare, concurrency=2, poll_interval=HOUR)
    wait_until(lambda: tried)
    wait_until(lambda: worker.worker.pool.finished, "the attempt was interrupted while the database was gone")
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN


def test_stopping_without_a_database_neither_spins_nor_is_deaf(
    worker_thread: Start, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def prepare(worker: WorkerLoop) -> None:
        class Failing(Store):
            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements:
                    tried.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use(worker, Failing)

    jobs.noop.defer()
    worker = worker_thread(prepare=prepare, poll_interval=HOUR, shutdown_timeout=HOUR)
    wait_until(lambda: tried)
    worker.stop()
    wait_until(lambda: len(tried) >= 4)
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN
    assert len(tried) < 20
    assert statuses() == {"queued": 1}


def test_a_part_that_dies_takes_the_worker_down_loudly(
    worker_thread: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a broken part")

    monkeypatch.setattr("django_skipqueue.worker.attempts.executor.Executor.execute", broken)
    jobs.noop.defer()
    assert worker_thread().wait() == 1
    assert "worker broken" in caplog.text


def test_too_many_unsent_events_pause_claiming_which_is_said(
    worker_thread: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    monkeypatch.setattr(dispatcher, "MOST_EVENTS_WAITING", 50)
    release = threading.Event()

    def receive(**_: Any) -> None:
        release.wait(DEADLINE)

    signals.job_completed.connect(receive)
    try:
        jobs.noop.defer_many([()] * 1000)
        worker = worker_thread(poll_interval=0.05)
        wait_until(lambda: worker.worker.dispatcher.backlog > 50)
        wait_until(
            lambda: not worker.worker.in_flight.jobs and worker.worker.in_flight.room(time.monotonic()) == 0,
            "it has paused",
        )
        assert Job.objects.queued().exists()
        wait_until(lambda: "claiming paused" in caplog.text)
        release.set()
        wait_for_statuses(completed=1000)
        wait_until(lambda: "claiming resumed" in caplog.text)
    finally:
        release.set()
        signals.job_completed.disconnect(receive)


def _use(worker: WorkerLoop, store: type[Store]) -> None:
    """Have the worker use a store of this class."""
    in_flight = worker.in_flight
    in_flight.store = in_flight.exchanges.store = store("default")


def _count_looks(worker: WorkerLoop, looks: threading.Semaphore) -> None:
    class Counting(Store):
        def exchange(self, *arguments: Any, **options: Any) -> Any:
            looks.release()
            return super().exchange(*arguments, **options)

    _use(worker, Counting)

"""`WorkerLoop` is the control loop of a worker. Here it runs in a thread of the test, which can break its connection.

A task `pass_gate` waits until the test opens its gate, such as `gates["g"]`. `gates["g"].inside` is the number of tasks
that wait at this gate.
"""

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

StartWorker = Callable[..., WorkerThread]
HOUR = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


# Claims of jobs


@pytest.mark.core
def test_a_worker_runs_sync_and_async_jobs_and_saves_their_results(worker_thread: StartWorker) -> None:
    jobs.add.defer_many([(number, number) for number in range(200)])
    jobs.aadd.defer_many([(number, number) for number in range(200)])
    jobs.fail.defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 400, "failed": 1}
    for job in Job.objects.completed():
        assert job.result == 2 * job.args[0]
        assert (job.attempts, job.locked_at) == (1, None)


@pytest.mark.core
def test_a_notification_makes_an_idle_worker_run_a_job(worker_thread: StartWorker) -> None:
    worker = worker_thread(poll_interval=HOUR)
    wait_until(lambda: worker.listens)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    jobs.noop.using(queue_name="seen for the first time").defer()
    wait_for_statuses(completed=2)


def test_a_notification_that_arrives_with_the_answer_of_another_statement_is_noticed(
    worker_thread: StartWorker,
) -> None:
    """The notification is read together with the answer, so the socket does not become readable again."""
    heartbeat_is_due, job_is_deferred = threading.Event(), threading.Event()

    def prepare_worker(worker: WorkerLoop) -> None:
        write_heartbeat = worker.own_row.run

        def write_heartbeat_after_a_notification(now: float) -> None:
            if worker.control.listens and not heartbeat_is_due.is_set():
                heartbeat_is_due.set()
                assert job_is_deferred.wait(DEADLINE)
                socket = worker.control.fileno()
                assert socket is not None
                assert select.select([socket], [], [], DEADLINE)[0]
            write_heartbeat(now)

        worker.own_row.run = write_heartbeat_after_a_notification  # type: ignore[method-assign]

    worker_thread(prepare=prepare_worker, poll_interval=HOUR, worker_timeout=1.0)
    assert heartbeat_is_due.wait(DEADLINE)
    jobs.noop.defer()
    job_is_deferred.set()
    wait_for_statuses(completed=1)


def test_after_reconnecting_a_worker_finds_jobs_deferred_meanwhile(worker_thread: StartWorker) -> None:
    """The worker got no notification of the job, because its connection was broken."""
    is_cut, job_is_deferred = threading.Event(), threading.Event()

    def prepare_worker(worker: WorkerLoop) -> None:
        listen = worker.control.listen

        def listen_after_the_job() -> bool:
            if is_cut.is_set():
                assert job_is_deferred.wait(DEADLINE)
            return listen()

        worker.control.listen = listen_after_the_job  # type: ignore[method-assign,assignment]

    worker = worker_thread(prepare=prepare_worker, poll_interval=HOUR)
    claiming = worker.worker.in_flight.claiming
    wait_until(lambda: worker.listens and claiming.next_check > time.monotonic(), "the worker is idle")
    is_cut.set()
    worker.cut()
    jobs.noop.defer()
    job_is_deferred.set()
    wait_for_statuses(completed=1)


def test_a_worker_that_does_not_listen_finds_a_job_by_polling(worker_thread: StartWorker) -> None:
    worker = worker_thread(poll_interval=0.05, listen=False)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert not worker.listens


def test_a_worker_runs_only_jobs_of_its_own_queues(worker_thread: StartWorker) -> None:
    worker = worker_thread(poll_interval=HOUR, queue_names=("mine",))
    wait_until(lambda: worker.listens)
    jobs.noop.using(queue_name="theirs").defer()
    jobs.noop.using(queue_name="mine").defer()
    wait_for_statuses(completed=1, queued=1)


def test_queues_are_served_in_the_listed_order(worker_thread: StartWorker) -> None:
    for queue_name in ("c", "a", "b"):
        jobs.record.using(queue_name=queue_name).defer_many([{"entry": queue_name}] * 3)
    worker_thread(drain=True, concurrency=1, queue_names=("b", "a")).wait()
    assert "".join(Ledger.objects.order_by("id").values_list("entry", flat=True)) == "bbbaaa"
    assert Job.objects.queued().count() == 3


def test_a_worker_of_all_queues_alternates_between_two_full_queues(worker_thread: StartWorker, gates: Any) -> None:
    worker_jobs.pass_gate.using(queue_name="a").defer_many([("a",)] * 20)
    worker_jobs.pass_gate.using(queue_name="b").defer_many([("b",)] * 20)
    worker_thread(concurrency=1, poll_interval=HOUR)
    gates["a"].open()
    gates["b"].open()
    wait_for_statuses(completed=40)
    order = "".join(Job.objects.order_by("started_at", "id").values_list("queue_name", flat=True))
    assert order[:20] not in ("a" * 20, "b" * 20)  # not only jobs of one queue


def test_workers_that_hanging_jobs_fill_are_replaced_until_one_begins_with_another_queue(
    worker_thread: StartWorker, gates: Any
) -> None:
    """Each new worker begins with a random queue, so it does not always begin with the queue of the hanging jobs."""
    for queue_name in ("a", "b", "c"):
        task = worker_jobs.pass_gate if queue_name == "b" else jobs.record
        task.using(queue_name=queue_name).defer_many([(queue_name,)] * 8)
    workers_started: list[WorkerThread] = []
    while len(workers_started) < 20 and not Ledger.objects.exists():
        workers_started.append(worker := worker_thread(concurrency=4, poll_interval=HOUR, shutdown_timeout=0.0))
        wait_until(lambda worker=worker: len(worker.worker.in_flight.jobs) >= 4 or Ledger.objects.exists())  # type: ignore[misc]
        worker.stop()
        worker.wait()
    gates["b"].open()
    for worker in workers_started:
        worker.worker.pool.stop()
    assert Ledger.objects.exists()


def test_hanging_jobs_of_one_queue_get_at_most_half_of_the_slots_of_the_next_worker(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker whose slots the hanging jobs fill ends. The next worker knows which queue has hanging jobs."""
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    hanging_queues = HangingQueues()

    def share_hanging_queues(worker: WorkerLoop) -> None:
        worker.in_flight.claiming.hanging = hanging_queues

    for timeout in (0.2, 60):
        worker_jobs.pass_gate.using(queue_name="a", timeout=timeout, max_attempts=1).defer_many([("hung",)] * 4)
    first_worker = worker_thread(concurrency=4, prepare=share_hanging_queues)
    assert first_worker.wait() == EXIT_STUCK
    jobs.noop.using(queue_name="b").defer_many([()] * 40)
    worker_thread(concurrency=4, prepare=share_hanging_queues)
    wait_for_statuses(failed=4, completed=40, running=2, queued=2)  # hanging jobs run in two of the four slots
    jobs.noop.using(queue_name="b").defer_many([()] * 40)
    wait_for_statuses(failed=4, completed=80, running=2, queued=2)


def test_all_queues_are_served_although_a_claim_searches_only_a_few(worker_thread: StartWorker) -> None:
    for number in range(3 * FEW_QUEUES):
        jobs.noop.using(queue_name=f"queue {number}").defer_many([()] * 2)
    worker_thread(concurrency=1, drain=True, poll_interval=HOUR).wait()
    assert statuses() == {"completed": 6 * FEW_QUEUES}


def test_a_job_of_higher_priority_that_comes_later_runs_next(worker_thread: StartWorker, gates: Any) -> None:
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


def test_a_worker_stops_after_max_jobs_and_leaves_the_others_queued(worker_thread: StartWorker) -> None:
    jobs.noop.defer_many([()] * 30)
    assert worker_thread(max_jobs=17).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 17, "queued": 13}


# Claiming jobs ahead of their run


@pytest.mark.parametrize("task_names", [("pass_gate",), ("apass_gate",), ("pass_gate", "apass_gate")], ids=" and ".join)
def test_threads_and_coroutines_never_exceed_the_concurrency_although_jobs_are_claimed_ahead(
    worker_thread: StartWorker, gates: Any, task_names: tuple[str, ...]
) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 300)
    for _ in range(20):
        for task_name in task_names:
            getattr(worker_jobs, task_name).defer(task_name)
    worker_thread(concurrency=3)
    wait_until(lambda: sum(gates[task_name].inside for task_name in task_names) >= 3)
    for task_name in task_names:
        gates[task_name].open()
    wait_for_statuses(completed=300 + 20 * len(task_names))
    assert max(gates[task_name].most for task_name in task_names) <= 3


def test_jobs_claimed_ahead_by_a_worker_with_long_jobs_are_run_by_another_worker(
    worker_thread: StartWorker, gates: Any
) -> None:
    """The first worker has claimed jobs ahead when its threads begin long jobs. It releases the jobs that wait."""
    jobs.noop.using(priority=2).defer_many([()] * 300)
    worker_jobs.pass_gate.using(priority=1).defer_many([("long",)] * 2)
    jobs.noop.using(priority=0).defer_many([()] * 300)
    first_worker = worker_thread(concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["long"].inside == 2)
    wait_until(lambda: Job.objects.running().count() == 2, "all but the long jobs are released or completed")
    worker_thread(concurrency=2, poll_interval=HOUR)
    wait_for_statuses(completed=600, running=2)
    assert Job.objects.running().filter(locked_by=first_worker.id).count() == 2
    assert not Job.objects.exclude(task__endswith="pass_gate").exclude(attempts=1).exists()


def test_coroutine_jobs_behind_a_blocked_event_loop_are_run_by_another_worker(
    worker_thread: StartWorker, gates: Any
) -> None:
    worker_jobs.ablock_loop.using(priority=1).defer("g")
    jobs.anoop.defer_many([()] * 8)
    blocked_worker = worker_thread(concurrency=4)
    wait_until(lambda: gates["g"].inside)
    wait_until(lambda: Job.objects.running().count() == 1, "jobs that have not begun are released")
    wait_until(lambda: not blocked_worker.worker.shared.slots, "the blocked worker offers no slot")
    jobs.noop.using(queue_name="for threads").defer()
    wait_until(lambda: Job.objects.completed().filter(task=jobs.noop.name).exists(), "its threads still run jobs")
    worker_thread(concurrency=4)
    wait_for_statuses(completed=9, running=1)
    assert not Job.objects.exclude(attempts=1).exists()
    gates["g"].open()
    wait_for_statuses(completed=10)


def test_short_jobs_run_in_the_second_slot_beside_a_long_job(worker_thread: StartWorker, gates: Any) -> None:
    worker_jobs.pass_gate.using(priority=1).defer("long")
    jobs.noop.defer_many([()] * 500)
    worker_thread(concurrency=2, poll_interval=HOUR)
    wait_for_statuses(completed=500, running=1)


# A worker with `drain=True` ends when no job can be run


def test_a_drain_without_jobs_ends_at_once(worker_thread: StartWorker) -> None:
    assert worker_thread(drain=True, poll_interval=HOUR).wait() == EXIT_CLEAN


@pytest.mark.core
@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_a_drain_runs_due_jobs_and_their_immediate_retries(
    worker_thread: StartWorker, queue_names: tuple[str, ...]
) -> None:
    make_job("scheduled", run_after=timedelta(minutes=-1))
    job_not_due = make_job("scheduled", run_after=timedelta(hours=1))
    jobs.fail_times.defer(5)
    assert worker_thread(drain=True, poll_interval=HOUR, queue_names=queue_names).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 2, "scheduled": 1}
    assert Job.objects.scheduled().get().pk == job_not_due.pk


@pytest.mark.parametrize("queue_names", [(), ("default",)])
@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_a_drain_waits_for_a_job_that_another_session_has_locked(
    worker_thread: StartWorker, session: Callable[[], Session], status: str, queue_names: tuple[str, ...]
) -> None:
    job = make_job(status, run_after=timedelta(minutes=-1))
    other_session = session()
    other_session.begin()
    other_session(lambda: list(Job.objects.select_for_update().filter(pk=job.pk)))
    searches = threading.Semaphore(0)
    worker = worker_thread(
        drain=True, queue_names=queue_names, prepare=lambda worker: _count_searches(worker, searches)
    )
    for _ in range(3):
        assert searches.acquire(timeout=DEADLINE)
    assert worker.code is None
    other_session.commit()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


def test_a_drain_waits_for_its_orphaned_job_that_another_session_has_locked(
    worker_thread: StartWorker, session: Callable[[], Session]
) -> None:
    """The job is claimed by this worker according to its row, but another transaction has locked the row."""
    worker_id = "00000000-0000-0000-0000-000000000003"
    job = make_job("running", locked_by=worker_id, lease=1, attempts=1)
    other_session = session()
    other_session.begin()
    other_session(lambda: list(Job.objects.select_for_update().filter(pk=job.pk)))
    searches = threading.Semaphore(0)
    worker = worker_thread(
        drain=True, id=worker_id, worker_timeout=HOUR, prepare=lambda worker: _count_searches(worker, searches)
    )
    for _ in range(3):
        assert searches.acquire(timeout=DEADLINE)
    assert worker.code is None
    other_session.commit()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


@pytest.fixture
def refuse_retries(transactional_db: None) -> Iterator[None]:
    """Add a constraint that refuses each UPDATE which makes a job scheduled or queued again after an attempt."""
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE skipqueue_job"
            " ADD CONSTRAINT no_retries CHECK (attempts = 0 OR status NOT IN ('scheduled', 'queued')) NOT VALID"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE skipqueue_job DROP CONSTRAINT no_retries")


@pytest.mark.usefixtures("refuse_retries")
@pytest.mark.parametrize("queue_names", [(), ("default",)])
def test_jobs_whose_retry_the_database_refuses_fail_and_all_others_complete(
    worker_thread: StartWorker, queue_names: tuple[str, ...]
) -> None:
    for number in range(400):
        Job.objects.enqueue("backoff.negative" if number % 50 == 25 else "tests.app.jobs.noop")
    assert worker_thread(drain=True, poll_interval=HOUR, queue_names=queue_names).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 392, "failed": 8}
    assert not Job.objects.failed().filter(last_error="").exists()


# Outcomes that are difficult to store


@pytest.mark.parametrize(
    # What the backoff function returns, and the status of the job after its first failure.
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
def test_a_job_has_its_error_whatever_its_backoff_returns(worker_thread: StartWorker, name: str, status: str) -> None:
    Job.objects.enqueue(f"backoff.{name}", max_attempts=2)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job = Job.objects.get()
    assert job.status == status
    assert job.last_error
    assert job.errors


@pytest.mark.parametrize("kind", sorted(jobs.UNSTORABLE))
def test_a_result_that_cannot_be_stored_fails_its_job_with_an_error_that_says_so(
    worker_thread: StartWorker, kind: str
) -> None:
    jobs.return_unstorable.defer(kind)
    jobs.noop.defer()
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1, "failed": 1}
    assert "cannot be kept" in Job.objects.failed().get().last_error


@pytest.mark.core
def test_exceptions_with_strange_messages_and_base_exceptions_are_saved(worker_thread: StartWorker) -> None:
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


def test_a_result_of_a_million_characters_is_saved_completely(worker_thread: StartWorker) -> None:
    worker_jobs.return_long.defer(1_000_000)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    assert len(Job.objects.get().result or "") == 1_000_000


def test_a_job_of_an_unknown_task_is_postponed_and_fails_after_the_grace_time(worker_thread: StartWorker) -> None:
    job = Job.objects.enqueue("shop.jobs.soon", max_attempts=1)
    assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("scheduled", 0)
    assert job.unknown_since is not None
    Job.objects.update(run_after="2020-01-01T00:00Z")  # so that it is due again
    with override_settings(SKIPQUEUE={"UNKNOWN_TASK_GRACE": 0.000001}):
        assert worker_thread(drain=True).wait() == EXIT_CLEAN
    job.refresh_from_db()
    assert (job.status, job.attempts) == ("failed", 1)
    assert "shop.jobs.soon" in job.last_error
    assert "Is the app of shop.jobs in INSTALLED_APPS" in job.last_error


# Leases: only the worker with the newest lease of a job may save its outcome


def test_the_outcome_of_a_job_that_was_recovered_meanwhile_is_dropped_with_lease_lost(
    worker_thread: StartWorker, gates: Any, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    lost_events, completed_events = record_signal(signals.lease_lost), record_signal(signals.job_completed)
    worker_jobs.pass_gate.using(max_attempts=1).defer("g")
    worker = worker_thread(concurrency=1, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside)
    assert len(store.recover(worker_ids=[worker.id], reason="for the test")) == 1
    gates["g"].open()
    wait_until(lambda: lost_events)
    job = Job.objects.get()
    assert (job.status, job.last_error) == ("failed", "WorkerDied: for the test")
    assert lost_events[0]["attempt"].job.id == job.pk
    assert not completed_events


def test_a_worker_that_runs_a_recovered_job_twice_settles_it_once(
    worker_thread: StartWorker, gates: Any, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    """The job is recovered while it runs, and the same worker claims it again: two attempts with different leases."""
    lost_events, completed_events = record_signal(signals.lease_lost), record_signal(signals.job_completed)
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 1)
    store.recover(worker_ids=[worker.id])
    wait_until(lambda: gates["g"].inside == 2)
    gates["g"].open()
    wait_until(lambda: lost_events and completed_events)
    assert statuses() == {"completed": 1}
    assert (len(lost_events), len(completed_events)) == (1, 1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert worker.worker.in_flight.jobs == {}


def test_a_signal_is_sent_after_its_outcome_is_committed(worker_thread: StartWorker) -> None:
    statuses_when_sent: list[str] = []

    def receive(attempt: Any, **_: Any) -> None:
        statuses_when_sent.append(Job.objects.get(pk=attempt.job.id).status)

    connected_signals = (signals.job_completed, signals.job_failed, signals.job_retrying, signals.job_discarded)
    for signal in connected_signals:
        signal.connect(receive)
    try:
        jobs.noop.defer()
        jobs.discard.defer()
        jobs.return_unstorable.defer("nan")
        jobs.ask_for_retry.defer(HOUR)
        assert worker_thread(drain=True).wait() == EXIT_CLEAN
    finally:
        for signal in connected_signals:
            signal.disconnect(receive)
    assert sorted(statuses_when_sent) == ["completed", "discarded", "failed", "scheduled"]


@pytest.mark.parametrize("kind", ["slow", "raises"])
def test_a_slow_or_failing_signal_receiver_does_not_stop_jobs(worker_thread: StartWorker, kind: str) -> None:
    may_return = threading.Event()

    def receive(**_: Any) -> None:
        if kind == "raises":
            raise SystemExit("in a receiver")
        may_return.wait(DEADLINE)

    signals.job_completed.connect(receive)
    try:
        jobs.noop.defer_many([()] * 500)
        worker_thread()
        wait_for_statuses(completed=500)
    finally:
        may_return.set()
        signals.job_completed.disconnect(receive)


# Lost connections to the database


def test_an_idle_worker_reconnects_and_gets_notifications_again(worker_thread: StartWorker) -> None:
    worker = worker_thread(poll_interval=HOUR)
    for number in range(3):
        wait_until(lambda: worker.listens)
        jobs.noop.defer()
        wait_for_statuses(completed=number + 1)
        worker.cut()
    wait_until(lambda: worker.listens)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN


def test_600_jobs_run_once_each_even_if_the_connection_is_cut_three_times(worker_thread: StartWorker) -> None:
    jobs.record.using(max_attempts=1).defer_many([{"entry": str(number)} for number in range(600)])
    worker = worker_thread(poll_interval=HOUR, worker_timeout=1.0)
    for completed_count in (50, 200, 350):
        wait_until(lambda completed_count=completed_count: Job.objects.completed().count() >= completed_count)  # type: ignore[misc]
        worker.cut()
    wait_until(lambda: Job.objects.unfinished().count() == 0, "all are settled", deadline=2 * DEADLINE)
    assert statuses() == {"completed": 600}
    assert sorted(Ledger.objects.values_list("entry", flat=True)) == sorted(map(str, range(600)))
    worker.stop()
    assert worker.wait() == EXIT_CLEAN


def test_an_outcome_is_sent_again_until_the_database_saves_it(worker_thread: StartWorker, gates: Any) -> None:
    database_is_down = threading.Event()
    database_is_down.set()
    failed_exchanges: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class FailingStore(Store):
            """Saves no outcome while the database is down."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and database_is_down.is_set():
                    failed_exchanges.append(1)
                    raise OperationalError("the server closed the connection unexpectedly")
                return super().exchange(settlements, **options)

        _use_store(worker, FailingStore)

    jobs.record.using(max_attempts=1).defer(entry="once")
    worker_thread(prepare=prepare_worker, poll_interval=HOUR)
    wait_until(lambda: len(failed_exchanges) >= 2)
    assert statuses() == {"running": 1}
    database_is_down.clear()
    wait_for_statuses(completed=1)
    assert Ledger.objects.count() == 1


def test_jobs_whose_claim_was_committed_but_never_answered_are_released_and_run(worker_thread: StartWorker) -> None:
    jobs_in_lost_answer: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class LosingStore(Store):
            """Loses the answer to the first claim that finds jobs."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                answer = super().exchange(settlements, **options)
                if answer.count_claimed() and not jobs_in_lost_answer:
                    jobs_in_lost_answer.extend(job.id for job in answer.claimed())
                    raise OperationalError("the answer never came")
                return answer

        _use_store(worker, LosingStore)

    jobs.record.using(max_attempts=1).defer_many([{"entry": str(number)} for number in range(3)])
    make_worker(id="00000000-0000-0000-0000-000000000001")
    worker_thread(prepare=prepare_worker, id="00000000-0000-0000-0000-000000000001", poll_interval=HOUR)
    wait_for_statuses(completed=3)
    assert jobs_in_lost_answer  # the answer to a claim was lost
    assert set(Job.objects.values_list("attempts", flat=True)) == {1}
    assert Ledger.objects.count() == 3


@pytest.mark.parametrize("checks_before", range(len(ORPHAN_CHECK_DELAYS) - 1))
def test_a_claim_that_is_committed_after_some_orphan_checks_is_found_by_the_next(
    worker_thread: StartWorker, checks_before: int
) -> None:
    """The statement of the claim still ran on the lost connection when the worker searched for orphaned jobs."""
    own_id = "00000000-0000-0000-0000-000000000002"

    def prepare_worker(worker: WorkerLoop) -> None:
        class LateClaimStore(Store):
            """Claims a job for the worker after some of its searches for orphans."""

            def release_orphans(self, worker_id: str, **options: Any) -> Any:
                released_ids = super().release_orphans(worker_id, **options)
                if len(released_by_check) == checks_before:
                    jobs.noop.using(queue_name="late").defer()
                    Job.objects.claim(queue_names=["late"], limit=1, worker_id=worker_id)
                released_by_check.append(len(released_ids))
                return released_ids

        _use_store(worker, LateClaimStore)
        worker.in_flight.orphan_check.expect(0.0)

    released_by_check: list[int] = []
    worker_thread(prepare=prepare_worker, id=own_id, worker_timeout=2.0, poll_interval=HOUR, queue_names=("late",))
    wait_for_statuses(completed=1)
    assert released_by_check[: checks_before + 2] == [0] * (checks_before + 1) + [1]


def test_an_outcome_whose_answer_was_lost_is_reported_at_most_once(
    worker_thread: StartWorker, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    completed_events = record_signal(signals.job_completed)
    jobs_in_lost_answer: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class LosingStore(Store):
            """Loses the answer to the first exchange that saves an outcome."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                answer = super().exchange(settlements, **options)
                if settlements and not jobs_in_lost_answer:
                    jobs_in_lost_answer.append(1)
                    raise OperationalError("the answer never came")
                return answer

        _use_store(worker, LosingStore)

    jobs.record.using(max_attempts=1).defer(entry="once")
    worker = worker_thread(prepare=prepare_worker, poll_interval=HOUR)
    wait_for_statuses(completed=1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert len(completed_events) <= 1
    assert worker.worker.in_flight.jobs == {}


# Stopping a worker


def test_a_worker_that_stops_finishes_running_jobs_and_releases_the_others(
    worker_thread: StartWorker, gates: Any
) -> None:
    jobs.noop.using(priority=1).defer_many([()] * 300)
    worker_jobs.pass_gate.defer_many([("g",)] * 50)
    make_worker(id="00000000-0000-0000-0000-000000000003")
    worker = worker_thread(id="00000000-0000-0000-0000-000000000003", concurrency=2, poll_interval=HOUR)
    wait_until(lambda: gates["g"].inside == 2)
    worker.stop()
    wait_until(lambda: Job.objects.running().count() == 2, "claimed jobs that have not started are released")
    gates["g"].open()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 302, "queued": 48}
    assert set(Job.objects.queued().values_list("attempts", "locked_by")) == {(0, "")}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM skipqueue_worker")
        assert cursor.fetchone() == (0,)


def test_a_second_stop_releases_running_jobs_at_once_and_counts_no_attempt(
    worker_thread: StartWorker, gates: Any
) -> None:
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=HOUR)
    wait_until(lambda: gates["g"].inside == 1)
    worker.stop()
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN
    job = Job.objects.get()
    assert (job.status, job.attempts, job.locked_by) == ("queued", 0, "")
    assert job.lease == 2  # raised by the claim and by the release


def test_jobs_that_still_run_after_the_shutdown_timeout_are_released(worker_thread: StartWorker, gates: Any) -> None:
    worker_jobs.pass_gate.defer("g")
    worker_jobs.apass_gate.defer("h")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1 and gates["h"].inside == 1)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"queued": 2}
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_worker_whose_supervisor_was_killed_finishes_its_job_and_stops(
    worker_thread: StartWorker, gates: Any, caplog: pytest.LogCaptureFixture
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


def test_a_worker_without_a_supervisor_stops_within_the_worker_timeout(worker_thread: StartWorker, gates: Any) -> None:
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=HOUR, worker_timeout=0.2)
    wait_until(lambda: gates["g"].inside == 1)
    worker.abandon()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"queued": 1}


def test_the_signal_worker_stopped_is_sent_before_running_jobs_are_released(
    worker_thread: StartWorker, gates: Any
) -> None:
    """After the release another worker may run the jobs, so the process must then end without delay."""
    statuses_when_sent: list[str] = []

    def receive(**_: Any) -> None:
        statuses_when_sent.append(Job.objects.get().status)

    worker_jobs.pass_gate.defer("g")
    signals.worker_stopped.connect(receive)
    try:
        worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
        wait_until(lambda: gates["g"].inside == 1)
        worker.stop()
        assert worker.wait() == EXIT_CLEAN
    finally:
        signals.worker_stopped.disconnect(receive)
    assert statuses_when_sent == ["running"]
    assert statuses() == {"queued": 1}


def test_a_job_that_ends_while_worker_stopped_is_sent_is_completed_and_reported(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LAST_EVENTS_AFTER_RELEASE", DEADLINE)
    has_ended = threading.Event()
    reported_before_the_end: list[bool] = []

    def finish_job(**_: Any) -> None:
        gates["g"].open()
        wait_until(lambda: worker.worker.pool.finished)

    def take_a_while(**_: Any) -> None:
        reported_before_the_end.append(not has_ended.wait(0.2))

    worker_jobs.pass_gate.defer("g")
    signals.worker_stopped.connect(finish_job)
    signals.job_completed.connect(take_a_while)
    try:
        worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
        wait_until(lambda: gates["g"].inside == 1)
        worker.stop()
        assert worker.wait() == EXIT_CLEAN
        has_ended.set()
        wait_until(lambda: reported_before_the_end)
    finally:
        signals.worker_stopped.disconnect(finish_job)
        signals.job_completed.disconnect(take_a_while)
    assert statuses() == {"completed": 1}
    assert reported_before_the_end == [True]


def test_a_job_released_at_the_shutdown_timeout_counts_as_not_running_any_more(
    worker_thread: StartWorker, gates: Any
) -> None:
    """If the process is killed after the release, the supervisor must not count this as an attempt of the job."""
    running_jobs = RunningJobs(2)
    worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05, concurrency=1, running_jobs=running_jobs)
    wait_until(lambda: gates["g"].inside == 1)
    assert running_jobs.job_ids() == [Job.objects.get().pk]
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert running_jobs.job_ids() == []


def test_a_worker_whose_event_loop_is_blocked_exits_with_its_own_exit_code(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "STUCK_AFTER", 0.05)
    worker_jobs.aleave_blocking_background.defer("never")
    worker = worker_thread(poll_interval=HOUR)
    wait_until(lambda: gates["never"].inside == 1)
    jobs.anoop.defer()
    assert worker.wait() == EXIT_BLOCKED
    assert statuses() == {"completed": 1, "queued": 1}


# Rows of jobs that another session keeps locked


@pytest.fixture
def locking_session(worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Another session, which can lock rows. A worker waits for a locked row for at most 0.2 seconds."""
    monkeypatch.setattr(own_connections, "TIMEOUTS", "-c lock_timeout=200ms")
    session = Session()
    yield session
    session.close()


def lock_rows(locking_session: Session, *jobs: Job) -> None:
    """Lock the rows of these jobs until the session commits."""
    locking_session.begin()
    ids = [job.pk for job in jobs]
    locking_session(lambda: list(Job.objects.select_for_update().filter(pk__in=ids)))


def test_other_outcomes_are_saved_and_jobs_claimed_although_one_row_is_locked(
    worker_thread: StartWorker, gates: Any, locking_session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    held_jobs = [worker_jobs.pass_gate.defer("g") for _ in range(3)]
    worker_thread(poll_interval=HOUR, concurrency=3)
    wait_until(lambda: gates["g"].inside == 3)
    lock_rows(locking_session, held_jobs[1])
    with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
        gates["g"].open()
        wait_for_statuses(completed=2, running=1)
        for _ in range(3):
            worker_jobs.see.defer_many([(1,)] * 3)  # one job for each slot: the job with the locked row needs no slot
            wait_until(lambda: not Job.objects.queued().exists())
        wait_for_statuses(completed=11, running=1)
    assert f"outcomes waiting worker=w count=1 first_id={held_jobs[1].pk}" in caplog.text
    assert caplog.text.count("database lost") == 1
    locking_session.commit()
    wait_for_statuses(completed=12)
    assert set(Job.objects.values_list("attempts", "lease")) == {(1, 2)}


def test_a_worker_with_one_slot_runs_further_jobs_although_a_row_is_locked(
    worker_thread: StartWorker, gates: Any, locking_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prevent_claims_ahead(worker: WorkerLoop) -> None:
        monkeypatch.setattr(worker.in_flight.claiming.capacities[THREADS], "prefetch", lambda now: 0)

    held_job = worker_jobs.pass_gate.defer("g")
    worker_thread(poll_interval=HOUR, concurrency=1, prepare=prevent_claims_ahead)
    wait_until(lambda: gates["g"].inside == 1)
    lock_rows(locking_session, held_job)
    gates["g"].open()
    for number in (1, 2):
        jobs.noop.defer()
        wait_for_statuses(completed=number, running=1)
    locking_session.commit()
    wait_for_statuses(completed=3)


class ReleaseRecordingStore(Store):
    """A store that records the ids of released jobs, in a list for each statement."""

    released_ids: list[list[int]]

    def release(self, leases: Iterable[LeaseRef], *, interrupted: bool = False, later: bool = False) -> set[int]:
        leases = list(leases)
        self.released_ids.append([id for id, _ in leases])
        return super().release(leases, interrupted=interrupted, later=later)


def record_releases(worker: WorkerLoop) -> None:
    ReleaseRecordingStore.released_ids = []
    _use_store(worker, ReleaseRecordingStore)


def test_a_job_released_while_it_ran_has_an_operation_with_the_name_of_its_worker(
    worker_thread: StartWorker, gates: Any
) -> None:
    job = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, concurrency=1, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1)
    row_before = state(job)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    (operation,) = (row_after := state(job))["operations"]
    assert (row_after["status"], row_after["attempts"], row_after["started_at"]) == ("queued", 0, None)
    assert (operation["verb"], operation["by"], operation["attempts"]) == (
        "release",
        worker_name(row_before["locked_by"]),
        1,
    )
    assert datetime.fromisoformat(operation["since"]) == row_before["started_at"]
    gates["g"].open()


def test_a_stopping_worker_releases_other_jobs_although_one_row_is_locked(
    worker_thread: StartWorker, gates: Any, locking_session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    held_jobs = [worker_jobs.pass_gate.defer("g") for _ in range(3)]
    worker = worker_thread(poll_interval=HOUR, concurrency=3, shutdown_timeout=0.05, prepare=record_releases)
    wait_until(lambda: gates["g"].inside == 3)
    lock_rows(locking_session, held_jobs[1])
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    locking_session.commit()
    assert statuses() == {"queued": 2, "running": 1}
    assert [job.attempts for job in Job.objects.queued()] == [0, 0]
    # The release of other jobs is the last statement, because another worker may then run them at once.
    assert ReleaseRecordingStore.released_ids == [[held_jobs[1].pk], [held_jobs[0].pk, held_jobs[2].pk]]
    assert 'count=2 reason="they still ran' in caplog.text


def test_a_stopping_worker_waits_for_a_locked_row_and_releases_its_job(
    worker_thread: StartWorker, gates: Any, locking_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_connections, "TIMEOUTS", f"-c lock_timeout={DEADLINE}s")
    held_job = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05)
    wait_until(lambda: gates["g"].inside == 1)
    lock_rows(locking_session, held_job)
    worker.stop()
    wait_until(lambda: waits_for_lock(worker), "the worker waits for the row")
    locking_session.commit()
    assert worker.wait() == EXIT_CLEAN
    assert [(job.status, job.attempts) for job in Job.objects.all()] == [("queued", 0)]


def test_a_finished_job_with_a_locked_row_is_not_released_by_a_stopping_worker(
    worker_thread: StartWorker, gates: Any, locking_session: Session
) -> None:
    held_job = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.05, prepare=record_releases, concurrency=1)
    wait_until(lambda: gates["g"].inside == 1)
    lock_rows(locking_session, held_job)
    gates["g"].open()
    wait_until(lambda: worker.worker.in_flight.pending.aside)
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    locking_session.commit()
    assert ReleaseRecordingStore.released_ids == []
    assert statuses() == {"running": 1}  # the supervisor recovers it


def test_a_stopping_worker_saves_an_outcome_whose_row_has_just_been_unlocked(
    worker_thread: StartWorker, gates: Any, locking_session: Session
) -> None:
    held_job = worker_jobs.pass_gate.defer("g")
    worker = worker_thread(poll_interval=HOUR, shutdown_timeout=0.0, concurrency=1)
    wait_until(lambda: gates["g"].inside == 1)
    lock_rows(locking_session, held_job)
    gates["g"].open()
    pending = worker.worker.in_flight.pending
    wait_until(lambda: pending.aside)
    last_check = pending.next_check
    wait_until(lambda: pending.next_check != last_check)  # the next check is in a second
    locking_session.commit()
    worker.stop()
    assert worker.wait() == EXIT_CLEAN
    assert statuses() == {"completed": 1}


def test_a_job_claimed_ahead_whose_row_is_locked_is_released_after_the_lock(
    worker_thread: StartWorker, gates: Any, locking_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs_to_claim_ahead = 2

    def prepare_worker(worker: WorkerLoop) -> None:
        capacity = worker.in_flight.claiming.capacities[THREADS]
        monkeypatch.setattr(capacity, "prefetch", lambda now: jobs_to_claim_ahead)
        monkeypatch.setattr(capacity, "surplus", lambda unfinished, now: max(unfinished - 1 - jobs_to_claim_ahead, 0))

    worker_jobs.pass_gate.defer("g")
    worker_thread(
        poll_interval=HOUR, concurrency=1, worker_timeout=5.0, prepare=prepare_worker, queue_names=["default"]
    )
    wait_until(lambda: gates["g"].inside == 1)
    waiting_jobs = [jobs.noop.defer(), jobs.noop.defer()]
    wait_for_statuses(running=3)
    lock_rows(locking_session, waiting_jobs[0])
    jobs_to_claim_ahead = 0
    # Any worker may claim the released job again at once, which changes its lease.
    wait_until(lambda: Job.objects.get(pk=waiting_jobs[1].pk).lease > 1)
    locking_session.commit()
    wait_until(lambda: Job.objects.get(pk=waiting_jobs[0].pk).lease > 1)


def waits_for_lock(worker: WorkerThread) -> bool:
    """Return whether a statement of the worker's control connection waits for a lock."""
    control_connection = worker.worker.control.wrapper.connection
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0",
            [control_connection.info.backend_pid if control_connection else 0],
        )
        return bool(cursor.fetchone()[0])


# An exchange that begins before the result of the last exchange is applied


class OverlapStore(Store):
    """A store that calls `before` and `after` around each exchange that begins before the last result is applied.

    `overlaps` has an entry for each of these exchanges: whether the last result was applied during the exchange.
    """

    worker: WorkerLoop
    overlaps: list[bool]

    def exchange(self, *arguments: Any, **options: Any) -> Any:
        last_result_waits = not self.worker.in_flight.exchanges.buffer.is_empty
        if last_result_waits:
            self.before()
        answer = super().exchange(*arguments, **options)
        if last_result_waits:
            self.overlaps.append(self.worker.in_flight.exchanges.buffer.is_empty)
            return self.after(answer)
        return answer

    def before(self) -> None:
        pass

    def after(self, answer: ExchangeResult) -> ExchangeResult:
        return answer


def _use_overlap_store(store: type[OverlapStore]) -> Callable[[WorkerLoop], None]:
    def prepare_worker(worker: WorkerLoop) -> None:
        store.worker = worker
        store.overlaps = []
        _use_store(worker, store)

    return prepare_worker


MANY_JOBS = 5_000


def test_the_result_of_an_exchange_is_applied_during_the_next_exchange(worker_thread: StartWorker) -> None:
    jobs.noop.defer_many([()] * MANY_JOBS)
    worker = worker_thread(prepare=_use_overlap_store(OverlapStore), drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert OverlapStore.overlaps  # some exchanges began before the last result was applied
    assert all(OverlapStore.overlaps)  # each of them applied the last result
    assert worker.worker.jobs_done == Job.objects.completed().count() == MANY_JOBS


def test_a_result_is_applied_even_if_it_was_not_applied_during_the_next_exchange(worker_thread: StartWorker) -> None:
    class IgnoreMeanwhileStore(OverlapStore):
        """Applies no result during an exchange."""

        def exchange(self, *arguments: Any, meanwhile: Any = None, **options: Any) -> Any:
            return super().exchange(*arguments, **options)

    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(MANY_JOBS)])
    assert worker_thread(prepare=_use_overlap_store(IgnoreMeanwhileStore), drain=True).wait() == EXIT_CLEAN
    assert IgnoreMeanwhileStore.overlaps  # some exchanges began before the last result was applied
    assert sorted(worker_jobs.seen) == list(range(MANY_JOBS)), "each job has run once"


@pytest.mark.parametrize("job_count", [DELAYED_RESULT_JOBS - 1, DELAYED_RESULT_JOBS])
def test_only_a_result_with_many_jobs_waits_for_the_next_exchange(worker_thread: StartWorker, job_count: int) -> None:
    """A result with many jobs waits, so that PostgreSQL works while the worker decodes these jobs."""
    claimed_counts: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        worker.in_flight.exchanges.exchange(Plan(0.0, settles=True, claims=10 * job_count))
        claimed_counts.append(worker.in_flight.exchanges.buffer.claimed)

    jobs.noop.defer_many([()] * job_count)
    worker = worker_thread(prepare=prepare_worker, drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert claimed_counts == [job_count if job_count >= DELAYED_RESULT_JOBS else 0]
    assert worker.worker.jobs_done == Job.objects.completed().count() == job_count


def test_a_worker_with_too_many_unsaved_outcomes_claims_nothing(worker_thread: StartWorker) -> None:
    free_slots: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        worker.in_flight.may_claim = lambda now: True  # although it has no heartbeat yet
        for has_more in (True, False):
            worker.in_flight.pending.has_more = has_more
            free_slots.append(worker.in_flight.room(time.monotonic()))

    worker_thread(prepare=prepare_worker, concurrency=3)
    assert free_slots == [0, 3], "none while too many outcomes wait, then the three of the worker"


def test_jobs_of_a_waiting_result_are_not_taken_for_orphans(worker_thread: StartWorker) -> None:
    class OrphanSearchStore(OverlapStore):
        """Makes the worker search for orphans at each exchange that begins while a result waits."""

        def before(self) -> None:
            self.worker.in_flight.orphan_check.expect(time.monotonic())

        def release_orphans(self, *arguments: Any, **options: Any) -> set[int]:
            orphans_by_search.append(super().release_orphans(*arguments, **options))
            return orphans_by_search[-1]

    orphans_by_search: list[set[int]] = []
    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(MANY_JOBS)])
    assert worker_thread(prepare=_use_overlap_store(OrphanSearchStore), drain=True).wait() == EXIT_CLEAN
    assert orphans_by_search  # the worker has searched for orphans
    assert not set().union(*orphans_by_search)  # and has found none
    assert sorted(worker_jobs.seen) == list(range(MANY_JOBS)), "each job has run once"


def test_jobs_of_a_waiting_result_run_once_although_the_next_exchange_fails(worker_thread: StartWorker) -> None:
    failures: list[bool] = []

    class BreakingStore(OverlapStore):
        """Fails once, in the first exchange that begins while a result waits."""

        def before(self) -> None:
            if not failures:
                failures.append(True)
                raise OperationalError("the server closed the connection unexpectedly")

    worker_jobs.seen.clear()
    worker_jobs.see.defer_many([(number,) for number in range(MANY_JOBS)])
    assert worker_thread(prepare=_use_overlap_store(BreakingStore), drain=True).wait() == EXIT_CLEAN
    assert failures
    assert sorted(worker_jobs.seen) == list(range(MANY_JOBS)), "each job has run once"
    assert set(Job.objects.values_list("status", "attempts")) == {("completed", 1)}


def test_a_stopping_worker_releases_the_jobs_of_a_waiting_result(worker_thread: StartWorker) -> None:
    claimed_ids: list[int] = []

    class StoppingStore(OverlapStore):
        """Stops the worker when it has claimed many jobs while an earlier result waits."""

        def after(self, answer: ExchangeResult) -> ExchangeResult:
            rows = answer.claimed_rows if isinstance(answer.claimed_rows, list) else answer.claimed_rows.fetchall()
            if len(rows) >= DELAYED_RESULT_JOBS:  # the jobs of a smaller result begin at once
                worker_jobs.must_wait.set()
                self.worker.stop()
                claimed_ids.extend(id for id, *_ in rows)
            return replace(answer, claimed_rows=rows)

        def release(self, *arguments: Any, **options: Any) -> Any:
            released_ids = super().release(*arguments, **options)
            worker_jobs.may_continue.set()
            return released_ids

    worker_jobs.must_wait.clear()
    worker_jobs.may_continue.clear()
    worker_jobs.wait_if_asked.defer_many([()] * MANY_JOBS)
    assert worker_thread(prepare=_use_overlap_store(StoppingStore)).wait() == EXIT_CLEAN
    assert claimed_ids
    unfinished = Job.objects.filter(pk__in=claimed_ids).exclude(status="completed")
    end_states = set(unfinished.values_list("status", "attempts", "locked_by"))
    assert end_states == {("queued", 0, "")}, "only as many jobs have begun as the worker has threads"


def test_a_stopping_worker_sends_lease_lost_for_a_lost_attempt(
    worker_thread: StartWorker, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    lost_events = record_signal(signals.lease_lost)
    attempt = Attempt(
        ClaimedJob(
            id=1, lease=1, task="t", queue_name="default", args="[]", kwargs="{}", attempt=1, max_attempts=10,
            priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
        ),
        COMPLETED, started=1.0, ended=2.0, worker="w",
    )  # fmt: skip

    def prepare_worker(worker: WorkerLoop) -> None:
        worker.in_flight.exchanges.reports.lost.append(attempt)
        worker.stop()

    assert worker_thread(prepare=prepare_worker).wait() == EXIT_CLEAN
    assert [event["attempt"] for event in lost_events] == [attempt]


def test_jobs_of_a_waiting_result_are_run_during_an_outage(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.worker.control_connection.FIRST_REOPEN_DELAY", HOUR)
    monkeypatch.setattr("django_skipqueue.worker.control_connection.LONGEST_REOPEN_DELAY", HOUR)
    is_down = threading.Event()

    class BreakingStore(OverlapStore):
        """Fails once, in the first exchange that begins while a result waits."""

        def before(self) -> None:
            if not is_down.is_set():
                is_down.set()
                raise OperationalError("the server closed the connection unexpectedly")

    jobs.noop.defer_many([()] * MANY_JOBS)
    worker = worker_thread(prepare=_use_overlap_store(BreakingStore))
    wait_until(is_down.is_set)
    wait_until(lambda: worker.worker.in_flight.exchanges.buffer.is_empty)
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN


def test_a_drain_goes_on_after_a_database_error(worker_thread: StartWorker) -> None:
    database_is_down = [OperationalError("the server closed the connection unexpectedly")]

    def prepare_worker(worker: WorkerLoop) -> None:
        has_runnable_jobs = worker.has_runnable_jobs

        def fail_once() -> bool:
            if database_is_down:
                raise database_is_down.pop()
            return has_runnable_jobs()

        worker.has_runnable_jobs = fail_once  # type: ignore[method-assign]

    jobs.noop.defer()
    assert worker_thread(prepare=prepare_worker, drain=True, poll_interval=HOUR).wait() == EXIT_CLEAN
    assert not database_is_down  # the error was raised once


@pytest.mark.usefixtures("refuse_retries")
def test_outcomes_that_the_database_refuses_do_not_harm_others_of_overlapping_exchanges(
    worker_thread: StartWorker, record_signal: Callable[[Signal], list[dict[str, Any]]]
) -> None:
    completed_events, failed_events, retrying_events = (
        record_signal(signals.job_completed),
        record_signal(signals.job_failed),
        record_signal(signals.job_retrying),
    )
    worker_jobs.seen.clear()
    worker_jobs.see_or_never.defer_many([(number,) for number in range(MANY_JOBS)])
    worker = worker_thread(prepare=_use_overlap_store(OverlapStore), drain=True)
    assert worker.wait() == EXIT_CLEAN
    assert OverlapStore.overlaps  # some exchanges have overlapped
    assert statuses() == {"completed": MANY_JOBS - MANY_JOBS // 500, "failed": MANY_JOBS // 500}
    assert len(worker_jobs.seen) == len(completed_events) == MANY_JOBS - MANY_JOBS // 500, "each job has run once"
    assert len(failed_events) == MANY_JOBS // 500
    assert not retrying_events
    assert worker.worker.in_flight.jobs == {}


def test_max_jobs_counts_the_jobs_of_waiting_results(worker_thread: StartWorker) -> None:
    jobs.noop.defer_many([()] * MANY_JOBS)
    assert worker_thread(prepare=_use_overlap_store(OverlapStore), max_jobs=MANY_JOBS - 1234).wait() == EXIT_CLEAN
    assert OverlapStore.overlaps  # some results have waited
    assert statuses() == {"completed": MANY_JOBS - 1234, "queued": 1234}


def test_at_the_shutdown_timeout_an_outcome_is_saved_through_a_new_connection(worker_thread: StartWorker) -> None:
    failed_exchanges: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class FailingStore(Store):
            """Stops the worker when it saves an outcome, and fails in the first two attempts."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements:
                    failed_exchanges.append(1)
                    worker.stop(0)
                    if len(failed_exchanges) <= 2:
                        raise OperationalError("the server closed the connection unexpectedly")
                return super().exchange(settlements, **options)

        _use_store(worker, FailingStore)

    jobs.noop.defer()
    assert worker_thread(prepare=prepare_worker, poll_interval=HOUR).wait() == EXIT_CLEAN
    assert len(failed_exchanges) == 3
    assert statuses() == {"completed": 1}


def test_jobs_that_finish_during_an_outage_do_not_cause_more_attempts_to_connect(worker_thread: StartWorker) -> None:
    failed_exchanges: list[int] = []
    database_is_down = threading.Event()
    database_is_down.set()

    def prepare_worker(worker: WorkerLoop) -> None:
        class FailingStore(Store):
            """Saves no outcome while the database is down."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and database_is_down.is_set():
                    failed_exchanges.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use_store(worker, FailingStore)
        capacity = worker.in_flight.claiming.capacities[THREADS]
        capacity.prefetch = lambda now: 200  # type: ignore[method-assign]
        capacity.surplus = lambda unfinished, now: 0  # type: ignore[method-assign]

    worker_jobs.seen.clear()
    worker_jobs.see_slowly.defer_many([(number,) for number in range(200)])
    worker_thread(prepare=prepare_worker, concurrency=1, poll_interval=HOUR)
    wait_until(lambda: len(worker_jobs.seen) >= 50)
    assert len(failed_exchanges) < 10  # fewer than one for each finished job
    database_is_down.clear()
    wait_for_statuses(completed=200)
    assert sorted(worker_jobs.seen) == list(range(200)), "each job has run once"


def test_the_timeout_of_a_job_interrupts_it_during_an_outage(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_skipqueue.worker.control_connection.FIRST_REOPEN_DELAY", HOUR)
    monkeypatch.setattr("django_skipqueue.worker.control_connection.LONGEST_REOPEN_DELAY", HOUR)
    failed_exchanges: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class FailingStore(Store):
            """Fails in the first exchange that saves an outcome."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements and not failed_exchanges:
                    failed_exchanges.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use_store(worker, FailingStore)

    worker_jobs.stay.defer()
    jobs.noop.defer()
    worker = worker_thread(prepare=prepare_worker, concurrency=2, poll_interval=HOUR)
    wait_until(lambda: failed_exchanges)
    wait_until(lambda: worker.worker.pool.finished, "the attempt was interrupted while the database was gone")
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN


def test_a_worker_that_stops_during_an_outage_retries_slowly_and_obeys_a_second_stop(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    failed_exchanges: list[int] = []

    def prepare_worker(worker: WorkerLoop) -> None:
        class FailingStore(Store):
            """Saves no outcome."""

            def exchange(self, settlements: Any, **options: Any) -> Any:
                if settlements:
                    failed_exchanges.append(1)
                    raise OperationalError("no server")
                return super().exchange(settlements, **options)

        _use_store(worker, FailingStore)

    jobs.noop.defer()
    worker = worker_thread(prepare=prepare_worker, poll_interval=HOUR, shutdown_timeout=HOUR)
    wait_until(lambda: failed_exchanges)
    worker.stop()
    wait_until(lambda: len(failed_exchanges) >= 4)
    worker.stop(now=True)
    assert worker.wait() == EXIT_CLEAN
    assert len(failed_exchanges) < 20  # the worker waits longer after each failure
    assert statuses() == {"queued": 1}


def test_an_unexpected_error_in_a_thread_of_the_worker_is_logged_and_ends_it(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_error(*_: object) -> None:
        raise RuntimeError("a broken part")

    monkeypatch.setattr("django_skipqueue.worker.attempts.executor.Executor.execute", raise_error)
    jobs.noop.defer()
    assert worker_thread().wait() == 1
    assert "worker broken" in caplog.text


def test_too_many_unsent_events_pause_claiming_and_the_pause_is_logged(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="django_skipqueue")
    monkeypatch.setattr(dispatcher, "MOST_EVENTS_WAITING", 50)
    may_return = threading.Event()

    def receive(**_: Any) -> None:
        may_return.wait(DEADLINE)

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
        may_return.set()
        wait_for_statuses(completed=1000)
        wait_until(lambda: "claiming resumed" in caplog.text)
    finally:
        may_return.set()
        signals.job_completed.disconnect(receive)


def _use_store(worker: WorkerLoop, store: type[Store]) -> None:
    """Make the worker use a store of this class."""
    in_flight = worker.in_flight
    in_flight.store = in_flight.exchanges.store = store("default")


def _count_searches(worker: WorkerLoop, searches: threading.Semaphore) -> None:
    class Counting(Store):
        """Counts the exchanges by the semaphore."""

        def exchange(self, *arguments: Any, **options: Any) -> Any:
            searches.release()  # adds 1 to the semaphore
            return super().exchange(*arguments, **options)

    _use_store(worker, Counting)

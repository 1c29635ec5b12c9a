"""A supervisor waits for notifications of new jobs and wakes its workers. While it cannot, the workers listen."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import OperationalError, connection, connections

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.calls import WatchQueues
from django_skipqueue.supervisor.processes import WorkerProcess
from django_skipqueue.worker.control_connection import ControlConnection
from django_skipqueue.worker.options import WorkerOptions
from django_skipqueue.worker.protocol import SharedCounts

from ..app import jobs
from ..app.models import Ledger
from ..app.rows import make_job
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers

RunWorker = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)


def count_listeners(name: str) -> int:
    """How many sessions of this application wait for notifications: LISTEN was their last statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE %s AND query LIKE 'LISTEN%%'",
            [name],
        )
        return int(cursor.fetchone()[0])


def test_workers_do_not_listen_while_their_supervisor_does(runworker: RunWorker) -> None:
    runworker("--processes", "3", "--poll-interval", HOUR)
    workers(3)
    for _ in range(10):
        jobs.noop.defer()
        wait_until(lambda: not Job.objects.unfinished().exists())
    # On a busy machine, a worker whose supervisor is late listens for a while.
    wait_until(lambda: count_listeners("skipqueue:%") == 0, "no worker listens")


def test_one_job_wakes_only_one_worker(runworker: RunWorker) -> None:
    """On a busy machine the woken worker may be slow, and another is woken too. So the test tries until it succeeds."""
    runworker("--processes", "4", "--poll-interval", HOUR)
    workers(4)
    wait_until(lambda: count_active_workers("'-infinity'") == 4)
    wait_until(lambda: count_workers_woken_by_one_job() == 1)
    wait_until(lambda: count_workers_woken_by_one_job() == 1)


def count_workers_woken_by_one_job() -> int:
    """Enqueue a job and wait for its end. Returns how many workers became active."""
    wait_until(lambda: count_active_workers("now() - interval '1 second'") == 0, "all are idle")
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()::text")
        started_at = cursor.fetchone()[0]
    jobs.noop.defer()
    wait_until(lambda: not Job.objects.unfinished().exists())
    return count_active_workers(f"'{started_at}'")


def count_active_workers(since: str) -> int:
    """Return the number of workers whose database sessions have been active since this time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'skipqueue:%%'"
            f" AND state_change > {since}"
        )
        return int(cursor.fetchone()[0])


def test_a_job_without_a_notification_is_found_by_polling(runworker: RunWorker) -> None:
    runworker("--processes", "2", "--poll-interval", "0.2")
    workers(2)
    make_job("queued", task=jobs.noop.name)
    wait_for_statuses(completed=1)


def test_a_job_does_not_wait_for_a_busy_worker_while_another_is_idle(runworker: RunWorker) -> None:
    """A worker with no free thread does not count as free, even if it has free slots for coroutines or claims ahead."""
    runworker("--processes", "2", "--concurrency", "1", "--poll-interval", HOUR)
    workers(2)
    for _ in range(50):
        jobs.noop.defer()
    wait_for_statuses(completed=50)
    jobs.record_and_hold.defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    jobs.record_and_hold.defer("second")
    wait_until(lambda: Ledger.objects.filter(entry="second").exists())
    jobs.arecord_and_hold.defer("third")
    wait_until(lambda: Ledger.objects.filter(entry="third").exists())
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=53)


@pytest.mark.slow  # it takes 35 seconds
def test_polling_finds_a_coroutine_job_while_all_threads_are_busy(runworker: RunWorker) -> None:
    runworker("--no-listen", "--concurrency", "1", "--poll-interval", "0.2")
    workers(1)
    jobs.record_and_hold.defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    wait_until(lambda: count_active_workers("now() - interval '0.3 second'") == 0, "the worker rests")
    jobs.arecord.defer("second")
    wait_until(lambda: Ledger.objects.filter(entry="second").exists())
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=2)


def test_two_workers_with_max_jobs_1_run_one_of_two_jobs_each(runworker: RunWorker) -> None:
    runworker("--processes", "2", "--max-jobs", "1", "--poll-interval", HOUR)
    workers(2)
    jobs.noop.defer_many([(), ()])
    wait_for_statuses(completed=2)


def test_each_replacement_of_a_recycled_worker_is_woken_for_new_jobs(runworker: RunWorker) -> None:
    runworker("--max-jobs-per-worker", "2", "--poll-interval", HOUR)
    workers(1)
    for number in range(1, 8):
        jobs.noop.defer()
        wait_for_statuses(completed=number)


def test_malformed_notifications_do_not_stop_the_supervisor(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR)
    workers(1)
    for payload in ("default,x", "default,-5", "q" * 7999, ",", "a,b,c"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify('skipqueue', %s)", [payload])
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert process.process.poll() is None


def test_while_the_supervisor_is_stopped_an_idle_worker_listens_and_then_stops(runworker: RunWorker) -> None:
    process = runworker("--poll-interval", HOUR)
    workers(1)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    process.send(signal.SIGSTOP)
    jobs.noop.defer()
    wait_for_statuses(completed=2)
    jobs.noop.defer()
    wait_for_statuses(completed=3)
    process.send(signal.SIGCONT)
    wait_until(lambda: last_statement("skipqueue:%").startswith("UNLISTEN"), "the worker listens no more")
    jobs.noop.defer()
    wait_for_statuses(completed=4)


def test_with_no_listen_the_supervisor_polls_and_does_not_listen(runworker: RunWorker) -> None:
    runworker("--no-listen", "--processes", "2", "--poll-interval", "0.2")
    workers(2)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert count_listeners("skipqueue %") == 0


def last_statement(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s", [name]
        )
        return str(cursor.fetchone()[0])


class TestWatchedUntil:
    """A supervisor promises its workers to watch the queues until the time `watched_until`, and renews the promise."""

    @pytest.fixture
    def watch_with_process_and_control(self) -> Iterator[tuple[WatchQueues, WorkerProcess, ControlConnection]]:
        process = WorkerProcess("m/1", 4)
        process.pid, process.shared = os.getpid(), SharedCounts()
        store = Store("default")
        original_connection, original_handler = connections["default"], signal.getsignal(signal.SIGALRM)
        control = ControlConnection(store, who="test")
        options = WorkerOptions(name="m", database="default", listen=False)
        yield WatchQueues(store, control, [process], options, queues_found=lambda names, paused: None), process, control
        control.close()
        connections["default"] = original_connection
        signal.signal(signal.SIGALRM, original_handler)

    def test_the_promise_is_renewed_only_while_the_service_runs_in_time(
        self, watch_with_process_and_control: tuple[WatchQueues, WorkerProcess, ControlConnection]
    ) -> None:
        watch, process, _ = watch_with_process_and_control
        promises_seen = []
        for now in (100.0, 100.5, 102.0, 102.5):
            process.shared.watched_until = 0.0
            watch.run(now)
            promises_seen.append(process.shared.watched_until > time.monotonic())
        assert promises_seen == [True, True, False, True], "at the third run the last promise was over"

    def test_the_promise_ends_with_the_connection(
        self, watch_with_process_and_control: tuple[WatchQueues, WorkerProcess, ControlConnection]
    ) -> None:
        watch, process, control = watch_with_process_and_control
        watch.run(100.0)
        process.shared.is_session = True
        assert process.shared.watched_until > 0.0
        with control.handling_errors():
            raise OperationalError("gone")
        assert (process.shared.watched_until, process.shared.is_session) == (0.0, False)

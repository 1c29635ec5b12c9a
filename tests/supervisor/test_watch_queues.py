"""A supervisor watches the queues for its workers. While it cannot, the workers watch the queues."""

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

Run = Callable[..., ManagePy]
HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True)


def listeners(name: str) -> int:
    """How many sessions of this application wait for notifications: LISTEN was their last statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE %s AND query LIKE 'LISTEN%%'",
            [name],
        )
        return int(cursor.fetchone()[0])


def test_a_worker_that_is_called_does_not_listen_itself(runworker: Run) -> None:
    runworker("--processes", "3", "--poll-interval", HOUR)
    workers(3)
    for _ in range(10):
        jobs.noop.defer()
        wait_until(lambda: not Job.objects.unfinished().exists())
    # On a busy machine, a worker whose supervisor is late listens for a while.
    wait_until(lambda: listeners("skipqueue:%") == 0, "no worker listens")


def test_one_job_makes_one_worker_claim(runworker: Run) -> None:
    """All other workers send no statement, unless the called worker does not answer soon on a busy machine."""
    runworker("--processes", "4", "--poll-interval", HOUR)
    workers(4)
    wait_until(lambda: active_workers("'-infinity'") == 4)
    wait_until(lambda: claimers_of_one_job() == 1)
    wait_until(lambda: claimers_of_one_job() == 1)


def claimers_of_one_job() -> int:
    """How many workers are active between the enqueue of a job and its end."""
    wait_until(lambda: active_workers("now() - interval '1 second'") == 0, "all are idle")
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()::text")
        before = cursor.fetchone()[0]
    jobs.noop.defer()
    wait_until(lambda: not Job.objects.unfinished().exists())
    return active_workers(f"'{before}'")


def active_workers(since: str) -> int:
    """How many workers' sessions have done anything since this time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'skipqueue:%%'"
            f" AND state_change > {since}"
        )
        return int(cursor.fetchone()[0])


def test_a_job_that_nobody_was_notified_of_is_found_by_the_supervisors_look(runworker: Run) -> None:
    runworker("--processes", "2", "--poll-interval", "0.2")
    workers(2)
    make_job("queued", task=jobs.noop.name)
    wait_for_statuses(completed=1)


def test_jobs_wait_for_no_worker_that_is_busy_while_another_is_idle(runworker: Run) -> None:
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
def test_jobs_of_a_free_runner_are_looked_for_while_another_is_full(runworker: Run) -> None:
    runworker("--no-listen", "--concurrency", "1", "--poll-interval", "0.2")
    workers(1)
    jobs.record_and_hold.defer("first")
    wait_until(lambda: Ledger.objects.filter(entry="first").exists())
    wait_until(lambda: active_workers("now() - interval '0.3 second'") == 0, "the worker rests")
    jobs.arecord.defer("second")
    wait_until(lambda: Ledger.objects.filter(entry="second").exists())
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=2)


def test_a_worker_that_may_run_one_job_is_called_for_one(runworker: Run) -> None:
    runworker("--processes", "2", "--max-jobs", "1", "--poll-interval", HOUR)
    workers(2)
    jobs.noop.defer_many([(), ()])
    wait_for_statuses(completed=2)


def test_a_process_in_the_place_of_another_is_called(runworker: Run) -> None:
    runworker("--max-jobs-per-worker", "2", "--poll-interval", HOUR)
    workers(1)
    for number in range(1, 8):
        jobs.noop.defer()
        wait_for_statuses(completed=number)


def test_a_strange_notification_harms_nobody(runworker: Run) -> None:
    process = runworker("--poll-interval", HOUR)
    workers(1)
    for payload in ("default,x", "default,-5", "q" * 7999, ",", "a,b,c"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify('skipqueue', %s)", [payload])
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert process.process.poll() is None


def test_while_the_supervisor_is_stopped_an_idle_worker_listens_and_then_stops(runworker: Run) -> None:
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


def test_without_notifications_the_supervisor_looks_at_intervals(runworker: Run) -> None:
    runworker("--no-listen", "--processes", "2", "--poll-interval", "0.2")
    workers(2)
    jobs.noop.defer()
    wait_for_statuses(completed=1)
    assert listeners("skipqueue %") == 0


def last_statement(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s", [name]
        )
        return str(cursor.fetchone()[0])


class TestPromises:
    """The promises of a supervisor to watch the queues."""

    @pytest.fixture
    def watched(self) -> Iterator[tuple[WatchQueues, WorkerProcess, ControlConnection]]:
        process = WorkerProcess("m/1", 4)
        process.pid, process.shared = os.getpid(), SharedCounts()
        store = Store("default")
        before, alarm = connections["default"], signal.getsignal(signal.SIGALRM)
        control = ControlConnection(store, who="test")
        options = WorkerOptions(name="m", database="default", listen=False)
        yield WatchQueues(store, control, [process], options, queues_found=lambda names, paused: None), process, control
        control.close()
        connections["default"] = before
        signal.signal(signal.SIGALRM, alarm)

    def test_promises_are_renewed_while_the_service_runs_in_time(
        self, watched: tuple[WatchQueues, WorkerProcess, ControlConnection]
    ) -> None:
        watch, process, _ = watched
        promised = []
        for now in (100.0, 100.5, 102.0, 102.5):
            process.shared.watched_until = 0.0
            watch.run(now)
            promised.append(process.shared.watched_until > time.monotonic())
        assert promised == [True, True, False, True], "other services have delayed the third run"

    def test_promises_end_with_the_connection(
        self, watched: tuple[WatchQueues, WorkerProcess, ControlConnection]
    ) -> None:
        watch, process, control = watched
        watch.run(100.0)
        process.shared.is_session = True
        assert process.shared.watched_until > 0.0
        with control.handling_errors():
            raise OperationalError("gone")
        assert (process.shared.watched_until, process.shared.is_session) == (0.0, False)

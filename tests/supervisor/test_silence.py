"""A supervisor that is stopped or cut off, while its workers live and keep their jobs."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from django_skipqueue.models import Job, Worker
from django_skipqueue.queue.store import Store

from ..app import jobs
from ..app.models import Ledger
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers

store = Store("default")

Run = Callable[..., ManagePy]
HOUR = "3600"
TIMEOUT = 2
EAGER = {"HEARTBEAT_INTERVAL": TIMEOUT / 8}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(runworker: Run) -> ManagePy:
    """A worker in the middle of a job, and another supervisor, which would recover the job of a dead worker."""
    watching = runworker(
        "--worker-timeout", str(TIMEOUT), "--poll-interval", HOUR, "--queues", "other", "--name", "B", skipqueue=EAGER
    )
    watching.wait_for("worker started")
    jobs.record_and_hold.using(max_attempts=10).defer("a")
    process = runworker("--worker-timeout", str(TIMEOUT), "--poll-interval", HOUR, "--name", "A", skipqueue=EAGER)
    workers(2)
    wait_until(lambda: Ledger.objects.filter(entry="a").exists())
    return process


def is_untouched_for_long() -> bool:
    """Whether the job has run for several worker timeouts. It must stay in its first attempt."""
    assert Job.objects.filter(status="running", attempts=1, lease=1, errors=[]).exists(), Job.objects.values().get()
    return Job.objects.filter(locked_at__lt=Now() - timedelta(seconds=4 * TIMEOUT)).exists()


def finish() -> None:
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=1)


def test_while_a_supervisor_is_stopped_its_workers_job_is_neither_taken_nor_failed(running: ManagePy) -> None:
    running.send(signal.SIGSTOP)
    wait_until(is_untouched_for_long)
    running.wait_for("supervisor silent")
    finish()
    jobs.noop.defer()
    wait_for_statuses(completed=2)
    running.send(signal.SIGCONT)
    running.wait_for("supervisor back")
    running.send(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.slow  # it waits for two worker timeouts
def test_a_supervisor_without_a_connection_keeps_its_workers_job(running: ManagePy) -> None:
    with cut_off("skipqueue supervisor A"):
        running.wait_for('database lost who="supervisor A"', times=3)
        wait_until(is_untouched_for_long)
        finish()
    running.wait_for('database back who="supervisor A"')


def test_a_worker_that_was_taken_for_dead_lets_go_of_its_job_and_goes_on(running: ManagePy) -> None:
    """For example, an operator has removed the worker's row and recovered its jobs."""
    worker = Worker.objects.get(name="A/1")
    job = Job.objects.get()
    assert store.recover(worker_ids=[worker.pk])
    store.delete_workers([worker.pk])
    running.wait_for("lease lost")
    wait_until(Worker.objects.filter(pk=worker.pk).exists)
    finish()
    job.refresh_from_db()
    assert (job.attempts, job.locked_by) == (2, worker.pk)


SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = %s"


@contextmanager
def cut_off(name: str) -> Iterator[None]:
    """End the connections of this supervisor and allow no new connection. Its workers keep their connections."""
    connection.ensure_connection()
    info = connection.connection.info
    with psycopg.connect(info.dsn, dbname="postgres", password=info.password or None, autocommit=True) as server:
        database = psycopg.sql.Identifier(info.dbname)
        # The workers may have begun before: the supervisor connects once they are forked.
        wait_until(lambda: server.execute(SESSIONS, [name, info.dbname]).fetchone() == (1,), f"{name} is connected")
        server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(database))
        try:
            ended = server.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name = %s AND datname = %s",
                [name, info.dbname],
            ).fetchone()
            assert ended == (1,), ended
            yield
        finally:
            server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(database))

"""While a supervisor is stopped or has no database connection, its workers keep their jobs."""

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

RunWorker = Callable[..., ManagePy]
HOUR = "3600"
TIMEOUT = 2
FREQUENT_HEARTBEATS = {"HEARTBEAT_INTERVAL": TIMEOUT / 8}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def supervisor_with_running_job(runworker: RunWorker) -> ManagePy:
    """A supervisor with a worker in the middle of a job. A second supervisor would recover the job of a dead worker."""
    second_supervisor = runworker(
        "--worker-timeout",
        str(TIMEOUT),
        "--poll-interval",
        HOUR,
        "--queues",
        "other",
        "--name",
        "B",
        skipqueue=FREQUENT_HEARTBEATS,
    )
    second_supervisor.wait_for("worker started")
    jobs.record_and_hold.using(max_attempts=10).defer("a")
    first_supervisor = runworker(
        "--worker-timeout", str(TIMEOUT), "--poll-interval", HOUR, "--name", "A", skipqueue=FREQUENT_HEARTBEATS
    )
    workers(2)
    wait_until(lambda: Ledger.objects.filter(entry="a").exists())
    return first_supervisor


def is_still_in_first_attempt_after_long() -> bool:
    """Whether the job has run for four worker timeouts. Fails if the job is not in its first attempt."""
    assert Job.objects.filter(status="running", attempts=1, lease=1, errors=[]).exists(), Job.objects.values().get()
    return Job.objects.filter(locked_at__lt=Now() - timedelta(seconds=4 * TIMEOUT)).exists()


def finish_job() -> None:
    Ledger.objects.create(entry="go")
    wait_for_statuses(completed=1)


def test_while_a_supervisor_is_stopped_the_job_of_its_worker_is_not_recovered(
    supervisor_with_running_job: ManagePy,
) -> None:
    supervisor_with_running_job.send(signal.SIGSTOP)
    wait_until(is_still_in_first_attempt_after_long)
    supervisor_with_running_job.wait_for("supervisor silent")
    finish_job()
    jobs.noop.defer()
    wait_for_statuses(completed=2)
    supervisor_with_running_job.send(signal.SIGCONT)
    supervisor_with_running_job.wait_for("supervisor back")
    supervisor_with_running_job.send(signal.SIGTERM)
    assert supervisor_with_running_job.wait() == 0


@pytest.mark.slow  # it waits for two worker timeouts
def test_while_a_supervisor_has_no_connection_the_job_of_its_worker_is_not_recovered(
    supervisor_with_running_job: ManagePy,
) -> None:
    with without_connections_of("skipqueue supervisor A"):
        supervisor_with_running_job.wait_for('database lost who="supervisor A"', times=3)
        wait_until(is_still_in_first_attempt_after_long)
        finish_job()
    supervisor_with_running_job.wait_for('database back who="supervisor A"')


def test_a_live_worker_whose_job_was_recovered_registers_again_and_runs_it_again(
    supervisor_with_running_job: ManagePy,
) -> None:
    """For example, an operator has removed the worker's row and recovered its jobs."""
    worker = Worker.objects.get(name="A/1")
    job = Job.objects.get()
    assert store.recover(worker_ids=[worker.pk])
    store.delete_workers([worker.pk])
    supervisor_with_running_job.wait_for("lease lost")
    wait_until(Worker.objects.filter(pk=worker.pk).exists)
    finish_job()
    job.refresh_from_db()
    assert (job.attempts, job.locked_by) == (2, worker.pk)


COUNT_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = %s"


@contextmanager
def without_connections_of(name: str) -> Iterator[None]:
    """End the connections with this name and allow no new connection. Workers keep their connections."""
    connection.ensure_connection()
    info = connection.connection.info
    with psycopg.connect(info.dsn, dbname="postgres", password=info.password or None, autocommit=True) as server:
        database = psycopg.sql.Identifier(info.dbname)
        # A supervisor connects after it has forked its workers, so they may already run jobs.
        wait_until(
            lambda: server.execute(COUNT_SESSIONS, [name, info.dbname]).fetchone() == (1,), f"{name} is connected"
        )
        server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(database))
        try:
            ended_count = server.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE application_name = %s AND datname = %s",
                [name, info.dbname],
            ).fetchone()
            assert ended_count == (1,), ended_count
            yield
        finally:
            server.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(database))

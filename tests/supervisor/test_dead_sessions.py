"""The database sessions of a machine that froze or lost power are ended, and the machine's jobs are recovered."""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.pq import TransactionStatus

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.supervisor.liveness import DeadSessions
from django_skipqueue.values.records import session_name

from ..app.jobs import noop
from ..app.rows import make_job, make_worker
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses

pytestmark = pytest.mark.django_db(transaction=True)

store = Store("default")
OpenSession = Callable[..., psycopg.Connection[Any]]
LOCK_ALL_JOBS = "SELECT 1 FROM skipqueue_job FOR NO KEY UPDATE"
SELECT_A_MEGABYTE = "SELECT repeat('x', 1000) FROM generate_series(1, 1000)"


def leave_idle_in_transaction(session: psycopg.Connection[Any]) -> None:
    session.execute("BEGIN")
    session.execute(LOCK_ALL_JOBS)


def leave_pipeline_open(session: psycopg.Connection[Any]) -> None:
    """Make the server wait for the rest of a pipeline. Meanwhile no server timeout runs."""
    session.pgconn.enter_pipeline_mode()
    session.pgconn.send_query_params(LOCK_ALL_JOBS.encode(), [])
    session.pgconn.send_flush_request()
    session.pgconn.flush()


def leave_result_unread(session: psycopg.Connection[Any]) -> None:
    """Make the server wait until the client reads. Meanwhile the server handles no cancel request."""
    session.pgconn.send_query(f"{LOCK_ALL_JOBS}; {SELECT_A_MEGABYTE}".encode())
    session.pgconn.flush()


@pytest.fixture
def freeze_session(connect: OpenSession, worker_id: str) -> Iterator[Callable[[Callable[..., None], Job], None]]:
    """Makes a session of the worker that has locked the jobs, and whose client does nothing."""
    session = connect(application_name=session_name(worker_id))

    def make(freeze: Callable[..., None], job: Job) -> None:
        freeze(session)
        wait_until(lambda: store.locked([(job.pk, 1)]), "the session has locked the job")

    yield make
    session.close()


@pytest.mark.parametrize("freeze", [leave_idle_in_transaction, leave_pipeline_open, leave_result_unread])
def test_an_open_transaction_of_a_dead_worker_is_ended_and_its_jobs_are_recovered(
    freeze: Callable[..., None], freeze_session: Callable[..., Any], worker_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job("running", locked_by=worker_id)
    freeze_session(freeze, job)
    with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
        DeadSessions(store).end([worker_id])
    assert "sessions ended database=default count=1" in caplog.text
    wait_until(lambda: store.recover(worker_ids=[worker_id]), "the job is recovered")
    job.refresh_from_db()
    assert job.status == "queued"


def test_idle_sessions_and_sessions_of_other_workers_are_not_ended(connect: OpenSession, worker_id: str) -> None:
    """Behind a pooler, an idle session may belong to another client by now."""
    make_job()
    idle_session = connect(application_name=session_name(worker_id))
    session_of_other_worker = connect(application_name="skipqueue:0123456789ab")
    leave_idle_in_transaction(session_of_other_worker)
    assert store.end_sessions([worker_id]) == (0, 0)
    assert idle_session.execute("SELECT 1").fetchone() == (1,)
    assert session_of_other_worker.info.transaction_status == TransactionStatus.INTRANS
    session_of_other_worker.execute("ROLLBACK")


def test_sessions_of_a_loop_written_by_hand_are_not_ended(connect: OpenSession) -> None:
    make_job()
    session = connect(application_name="skipqueue:by hand")
    leave_idle_in_transaction(session)
    assert store.end_sessions(["by hand"]) == (0, 0)
    session.execute("ROLLBACK")


@pytest.fixture
def role_without_rights() -> Iterator[None]:
    """Give this session a role that may not end sessions of other roles."""
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS tests_plain; CREATE ROLE tests_plain; SET ROLE tests_plain")
        yield
        cursor.execute("RESET ROLE; DROP ROLE tests_plain")


@pytest.mark.usefixtures("role_without_rights")
def test_a_role_that_may_not_end_sessions_logs_this_once(
    connect: OpenSession, worker_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = connect(application_name=session_name(worker_id))
    session.execute("BEGIN")
    sessions = DeadSessions(store)
    with caplog.at_level(logging.WARNING, logger="django_skipqueue"):
        sessions.end([worker_id])
        sessions.end([worker_id])
    assert caplog.text.count("sessions left database=default count=1") == 1
    session.execute("ROLLBACK")


FREQUENT_HEARTBEATS = {"HEARTBEAT_INTERVAL": 0.2}


def test_the_jobs_of_a_machine_frozen_during_an_exchange_are_recovered(
    freeze_session: Callable[..., Any], worker_id: str, runworker: Callable[..., ManagePy]
) -> None:
    make_worker(id=worker_id, heartbeat=-timedelta(hours=1))
    job = noop.defer()
    Job.objects.filter(pk=job.pk).update(status="running", locked_by=worker_id, locked_at="2020-01-01T00:00Z", lease=1)
    freeze_session(leave_result_unread, job)
    runworker("--worker-timeout", "1", skipqueue=FREQUENT_HEARTBEATS)
    wait_for_statuses(completed=1)


SESSION_JOBS = """
    from django.db import connection

    from django_skipqueue import job


    @job
    def describe():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('application_name'), current_setting('tcp_user_timeout'),"
                " (SELECT array_agg(application_name) FROM pg_stat_activity WHERE application_name LIKE 'skipqueue:%'"
                " AND datname = current_database() AND pid <> pg_backend_pid())"
            )
            return cursor.fetchone()
"""


def test_all_worker_sessions_have_a_name_and_server_timeouts(
    runworker: Callable[..., ManagePy],
) -> None:
    job = Job.objects.enqueue("extra.jobs.describe")
    assert runworker("--drain", "--processes", "1", jobs=SESSION_JOBS).wait() == 0
    job.refresh_from_db()
    name = session_name(job.locked_by)
    # A client on a Unix socket has no TCP connection: the server shows 0 for it.
    timeout = "0" if connection.get_connection_params().get("host", "/").startswith("/") else "10s"
    assert job.result == [name, timeout, [name]]

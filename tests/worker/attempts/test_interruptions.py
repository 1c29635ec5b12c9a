"""An interruption may leave a lock or a connection in a bad state. This does not affect other jobs."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_skipqueue.models import Job
from django_skipqueue.worker import watchers as recycling
from django_skipqueue.worker.attempts import running_attempt
from django_skipqueue.worker.protocol import EXIT_RECYCLED, EXIT_STUCK

from ...app import worker_jobs
from ...app.jobs import noop
from ...app.waiting import wait_until
from ...app.worker_jobs import pass_gate, session_changed, write
from ...harness.processes import ManagePy, statuses, wait_for_statuses

StartWorker = Callable[..., Any]

THREAD_NAME_PREFIX = "skipqueue-"


@pytest.fixture
def _schema_of_tenant(transactional_db: None) -> Iterator[None]:
    """A schema `tenant` with its own table of the model `Ledger`."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        cursor.execute("CREATE TABLE tenant.testapp_ledger (LIKE public.testapp_ledger INCLUDING ALL)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA tenant CASCADE")


def entries(schema: str) -> list[str]:
    """The entries in the ledger of this schema."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT entry FROM {schema}.testapp_ledger ORDER BY id")
        return [entry for (entry,) in cursor.fetchall()]


@pytest.fixture
def _connecting_outlasts_timeout(_schema_of_tenant: None) -> Iterator[None]:
    """Make the opening of a connection take longer than the time limit of the tasks."""

    def choose_tenant(connection: Any, **_: Any) -> None:
        if threading.current_thread().name.startswith(THREAD_NAME_PREFIX):
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                time.sleep(0.005)
            with connection.cursor() as cursor:
                cursor.execute("SET search_path = tenant, public")

    connection_created.connect(choose_tenant)
    yield
    connection_created.disconnect(choose_tenant)


@pytest.mark.usefixtures("_connecting_outlasts_timeout")
def test_an_attempt_is_not_interrupted_while_its_connection_is_opened(worker_thread: StartWorker) -> None:
    """A task that catches its interruption, and writes a row, would write the row into the wrong schema."""
    worker_jobs.write_at_the_end_of_its_time.defer("late")
    worker_thread(concurrency=1)
    wait_for_statuses(failed=1)
    assert (entries("tenant"), entries("public")) == (["late"], [])
    assert Job.objects.get().last_error == "JobTimeout: timed out after 0.1 s"


@pytest.mark.usefixtures("_connecting_outlasts_timeout")
def test_an_attempt_that_hangs_in_opening_its_connection_is_reported_as_stuck(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    worker_jobs.write_at_the_end_of_its_time.defer("late")
    worker = worker_thread(concurrency=1)
    assert worker.wait() == EXIT_STUCK
    [error] = Job.objects.get().errors
    assert "it is stuck" in error["message"]
    assert "choose_tenant" in error["traceback"]


@pytest.mark.usefixtures("transactional_db")
def test_a_connection_whose_receiver_of_connection_created_raised_is_not_kept(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is open, but the receiver has not set its options."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)
    connections_refused: list[bool] = []

    def raise_once(connection: Any, **_: Any) -> None:
        if threading.current_thread().name.startswith(THREAD_NAME_PREFIX):
            if not connections_refused:
                connections_refused.append(True)
                raise ZeroDivisionError("in a receiver")
            with connection.cursor() as cursor:
                cursor.execute("SET application_name = 'whole'")

    connection_created.connect(raise_once)
    try:
        write.defer("first")
        worker_thread(concurrency=1)
        wait_for_statuses(failed=1)
        settings_job = worker_jobs.show.defer("application_name")
        wait_for_statuses(failed=1, completed=1)
    finally:
        connection_created.disconnect(raise_once)
    settings_job.refresh_from_db()
    assert settings_job.result == "whole"


@pytest.mark.parametrize("how", ["search_path", "set_autocommit", "statement", "unnoted"])
def test_later_jobs_do_not_get_the_session_that_an_interrupted_attempt_changed(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """This holds although the project keeps its connections for ever (CONN_MAX_AGE is None)."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)
    session_changed.using(timeout=0.3, max_attempts=1).defer(how)
    worker_thread(concurrency=1)
    wait_for_statuses(failed=1)
    settings_job = worker_jobs.show.defer("search_path")  # returns this setting of its session
    for number in range(3):
        write.defer(f"after {number}")
    wait_for_statuses(failed=1, completed=4)
    settings_job.refresh_from_db()
    assert settings_job.result == '"$user", public'
    assert sorted(entries("public")) == [f"after {number}" for number in range(3)]


def test_after_an_interruption_the_thread_is_replaced(worker_thread: StartWorker) -> None:
    worker_jobs.note_in_thread.defer("kept")
    worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    job_before = worker_jobs.noted_in_thread.defer()
    wait_for_statuses(completed=2)
    worker_jobs.stay.defer()
    wait_for_statuses(failed=1, completed=2)
    job_after = worker_jobs.noted_in_thread.defer()
    wait_for_statuses(failed=1, completed=3)
    for job in (job_before, job_after):
        job.refresh_from_db()
    assert (job_before.result, job_after.result) == ("kept", None)


# A process in which an attempt was interrupted


@pytest.fixture
def _process_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process be replaced right after an interruption."""
    monkeypatch.setattr(recycling, "RECYCLING_DELAY", 0.0)
    monkeypatch.setattr(recycling, "QUIET_CHECK_SECONDS", 0.05)


@pytest.mark.usefixtures("_process_replaced_at_once")
def test_after_an_interruption_the_process_is_replaced_once_long_jobs_have_ended(
    worker_thread: StartWorker, gates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pass_gate.defer("long")
    worker = worker_thread(concurrency=2, poll_interval=0.05)
    wait_until(lambda: gates["long"].inside)
    worker_jobs.stay.defer()
    wait_for_statuses(failed=1, running=1)
    for _ in range(20):  # the process is not replaced while these short jobs wait for the long job
        noop.defer()
    wait_for_statuses(failed=1, running=1, completed=20)
    assert worker.code is None
    gates["long"].open()
    assert worker.wait() == EXIT_RECYCLED
    assert "an attempt in it was interrupted" in caplog.text
    assert statuses() == {"failed": 1, "completed": 21}


@pytest.mark.usefixtures("_process_replaced_at_once")
def test_after_an_interruption_the_process_is_replaced_between_short_jobs(worker_thread: StartWorker) -> None:
    worker_jobs.stay.defer()
    for number in range(2_000):
        worker_jobs.see_slowly.defer(number)
    worker = worker_thread(concurrency=2)
    assert worker.wait() == EXIT_RECYCLED
    assert Job.objects.queued().exists()


@pytest.mark.usefixtures("_process_replaced_at_once")
def test_a_process_with_a_stuck_attempt_is_replaced_when_nothing_else_runs(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    stuck_job = pass_gate.using(timeout=1, max_attempts=1, priority=1).defer("stuck")
    pass_gate.defer("long")
    worker = worker_thread(concurrency=2, poll_interval=0.05)
    wait_for_statuses(failed=1, running=1)
    for _ in range(10):
        noop.using(queue_name="q").defer()  # a queue may fill half of the slots, which the long job does in its queue
    wait_for_statuses(failed=1, running=1, completed=10)
    gates["long"].open()
    assert worker.wait() == EXIT_STUCK
    stuck_job.refresh_from_db()
    stack = stuck_job.errors[0]["traceback"]
    assert stack.lstrip().startswith("File ")
    assert "in pass_gate" in stack.splitlines()[0], "the worker's own calls are left out"
    assert 'stack="File ' in caplog.text
    assert f"job stuck task=tests.app.worker_jobs.pass_gate id={stuck_job.pk} attempt=1/1" in caplog.text


def test_the_stack_of_a_stuck_cancelled_attempt_is_logged(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running_attempt, "STUCK_AFTER", 0.05)
    stuck_job = pass_gate.defer("stuck")
    worker_thread(concurrency=1)
    wait_until(lambda: gates["stuck"].inside)
    stuck_job.cancel(reason="nobody wants it")
    wait_until(lambda: 'error="nobody wants it"' in caplog.text)
    assert "gates[name].wait()" in caplog.text


# Many interruptions while a connection is opened


JOBS = """
    import random, threading, time

    from django.db import connection
    from django.db.backends.signals import connection_created
    from django_skipqueue import job
    from tests.app.models import Ledger


    def choose_tenant(connection, **_):
        if threading.current_thread().name.startswith("skipqueue-"):
            time.sleep(0.01)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(0.01)")
                cursor.execute("SET search_path = tenant, public")

    connection_created.connect(choose_tenant)


    @job(max_attempts=1)
    def late():
        connection.close()
        Ledger.objects.count()
        time.sleep(0.05)


    @job(max_attempts=1)
    def victim(number):
        Ledger.objects.create(entry=str(number))
"""


@pytest.mark.usefixtures("_schema_of_tenant")
def test_no_job_writes_to_a_connection_that_an_interruption_left_half_configured(
    runworker: Callable[..., ManagePy],
) -> None:
    count = 150
    for number in range(count):
        Job.objects.enqueue("extra.jobs.late", max_attempts=1, timeout=0.002 + 0.03 * (number % 10) / 10)
        Job.objects.enqueue("extra.jobs.victim", args=f"[{number}]", max_attempts=1)
    runworker(jobs=JOBS, settings="DATABASES['default'] = {**DATABASES['default'], 'CONN_MAX_AGE': None}")
    wait_until(lambda: not Job.objects.unfinished().exists(), "all are finished", deadline=90)
    assert Job.objects.failed().filter(task="extra.jobs.victim").count() == 0
    assert Job.objects.failed().filter(task="extra.jobs.late").count() > count // 4, "the race was not run"
    assert entries("public") == []
    assert sorted(map(int, entries("tenant"))) == list(range(count))

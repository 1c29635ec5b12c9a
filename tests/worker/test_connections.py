"""Database connections of workers that stall, break or go through a pooler: no job is lost."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from django_skipqueue.models import Job
from django_skipqueue.queue.store import Store
from django_skipqueue.worker import control_connection as module
from django_skipqueue.worker.control_connection import ControlConnection
from django_skipqueue.worker.own_connections import TIMEOUTS

from ..app.jobs import noop, record
from ..app.models import Ledger
from ..app.sessions import connect
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, children, wait_for_statuses
from ..harness.proxy import Proxy

RunWorker = Callable[..., ManagePy]


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    connection.ensure_connection()
    proxy = Proxy()
    yield proxy
    proxy.flow()
    proxy.close()


@pytest.fixture
def runworker_behind_proxy(proxy: Proxy, runworker: RunWorker) -> RunWorker:
    """Starts workers that reach the database through the proxy."""
    return lambda *arguments, **options: runworker(
        *arguments, settings=f"DATABASES['default'] = {{**DATABASES['default'], **{proxy.settings!r}}}", **options
    )


@pytest.mark.parametrize("directions", [(), ("server",), ("client",)], ids=["both", "from server", "from client"])
def test_a_connection_that_stalls_is_closed_after_ten_seconds_and_jobs_run_later(
    runworker_behind_proxy: RunWorker, proxy: Proxy, directions: tuple[str, ...]
) -> None:
    worker = runworker_behind_proxy("--poll-interval", "0.2")
    noop.defer()
    wait_for_statuses(completed=1)
    proxy.stall(*directions)
    record.defer("after")
    worker.wait_for("database lost", times=2, deadline=40)  # worker and supervisor
    assert "no answer for 10 s" in worker.log
    proxy.flow()
    wait_for_statuses(completed=2, deadline=40)
    assert Ledger.objects.count() == 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_reconnects_after_its_connections_were_cut_and_refused(
    runworker_behind_proxy: RunWorker, proxy: Proxy
) -> None:
    worker = runworker_behind_proxy("--poll-interval", "0.2")
    noop.defer()
    wait_for_statuses(completed=1)
    proxy.refuse()
    proxy.cut()
    worker.wait_for("database lost", times=2)
    noop.defer()
    proxy.refuse(False)
    wait_for_statuses(completed=2, deadline=30)


ALARM_JOBS = """
    import signal
    import time

    from django_skipqueue import job


    @job(max_attempts=1)
    def sets_alarms():
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        time.sleep(0.05)
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_alarm_signals_set_by_a_task_do_not_break_the_connection_of_the_worker(runworker: RunWorker) -> None:
    for _ in range(20):
        Job.objects.enqueue("extra.jobs.sets_alarms")
    worker = runworker("-c", "4", jobs=ALARM_JOBS)
    wait_for_statuses(completed=20)
    assert "database lost" not in worker.log


LONG_JOB = """
    import time

    from django_skipqueue import job


    @job(max_attempts=1)
    def take_long():
        time.sleep(3600)
"""


def test_the_supervisor_releases_a_job_that_its_worker_could_not_release_without_a_database(
    runworker_behind_proxy: RunWorker, proxy: Proxy
) -> None:
    Job.objects.enqueue("extra.jobs.take_long", max_attempts=1)
    worker = runworker_behind_proxy("--shutdown-timeout", "0.2", "--poll-interval", "0.2", jobs=LONG_JOB)
    wait_for_statuses(running=1)
    proxy.refuse()
    proxy.cut()
    worker.wait_for("database lost", times=2)
    worker.send(signal.SIGTERM)
    wait_until(lambda: not children(worker.process.pid), "the worker process has ended")
    proxy.refuse(False)
    assert worker.wait() == 0
    assert [(job.status, job.attempts) for job in Job.objects.all()] == [("queued", 0)]


SHORT_LOCK_TIMEOUT = """
options = {**DATABASES["default"].get("OPTIONS", {}), "options": "-c lock_timeout=300ms"}
DATABASES["default"] = {**DATABASES["default"], "OPTIONS": options}
"""


def test_the_supervisor_releases_a_job_that_its_worker_could_not_release_because_of_a_lock(
    runworker: RunWorker,
) -> None:
    long_job = Job.objects.enqueue("extra.jobs.take_long", max_attempts=1)
    worker = runworker(
        "--shutdown-timeout", "0.2", "--poll-interval", "0.2", jobs=LONG_JOB, settings=SHORT_LOCK_TIMEOUT
    )
    wait_for_statuses(running=1)
    with connect(autocommit=False) as locker:
        locker.execute("SELECT FROM skipqueue_job WHERE id = %s FOR UPDATE", [long_job.pk])
        worker.send(signal.SIGTERM)
        wait_until(lambda: not children(worker.process.pid), "the worker process has ended")
    assert worker.wait() == 0
    assert [(job.status, job.attempts) for job in Job.objects.all()] == [("queued", 0)]


def test_the_control_connection_sets_timeouts_on_the_server(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_connection = connections["default"]
    try:
        control = ControlConnection(Store("default"), who="w")
        with control.handling_errors(), connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT array_agg(setting ORDER BY name) FROM pg_settings WHERE name IN "
                "('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')"
            )
            assert cursor.fetchone() == (["10000", "5000", "8000"],)
        control.close()
    finally:
        connections["default"] = original_connection
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_if_a_pooler_refuses_timeouts_the_worker_connects_without_them(
    worker_thread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = DatabaseWrapper.get_new_connection

    def refuse_timeouts(self: Any, params: dict[str, Any]) -> Any:
        if TIMEOUTS in params.get("options", ""):
            raise OperationalError("FATAL:  unsupported startup parameter in options: statement_timeout")
        return connect(self, params)

    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", refuse_timeouts)
    noop.defer()
    worker_thread()
    wait_for_statuses(completed=1)
    assert caplog.text.count("server timeouts refused") == 1
    assert "database lost" not in caplog.text


def test_a_worker_that_gets_no_notifications_logs_it_once_and_polls(
    worker_thread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ECHO_TIME", 0.2)
    monkeypatch.setattr(module, "listen", lambda store: store.connection.ensure_connection())
    worker_thread(poll_interval=0.05)
    wait_until(lambda: "notifications unheard" in caplog.text)
    noop.defer()
    wait_for_statuses(completed=1)
    assert caplog.text.count("notifications unheard") == 1


def test_a_worker_that_gets_its_own_test_notification_logs_nothing(
    worker_thread: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_thread(poll_interval=0.05)
    wait_until(lambda: worker.worker.control.probe.is_settled)
    noop.defer()
    wait_for_statuses(completed=1)
    assert "notifications unheard" not in caplog.text
    assert "database lost" not in caplog.text
    assert not [name for name in worker.worker.in_flight.claiming.queue_names if "," in name]
    assert Job.objects.count() == 1

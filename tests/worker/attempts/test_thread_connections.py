"""`ThreadConnections`: each job gets connections that work, and that no earlier job has changed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

from django_skipqueue.models import Job
from django_skipqueue.worker.attempts import connections as module

from ...app import worker_jobs
from ...app.jobs import noop
from ...app.models import Ledger
from ...app.waiting import wait_until
from ...app.worker_jobs import session_changed, show, write
from ...harness.processes import ManagePy, wait_for_statuses
from ...harness.threads import WorkerThread, terminate

StartWorker = Callable[..., WorkerThread]


@pytest.fixture
def _connections_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make threads keep their connections for ever."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)


def open_a_connection_in_each_thread(worker: WorkerThread, gates: Any, count: int) -> None:
    """Have each thread open its connection."""
    completed_before = Job.objects.completed().count()
    for _ in range(count):
        worker_jobs.write_and_pass_gate.defer("open")
    wait_until(lambda: gates["open"].inside == count)
    gates["open"].open()
    wait_for_statuses(completed=completed_before + count)


# Before a job


@pytest.mark.usefixtures("_connections_kept")
@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("kind", ["", "a"], ids=["def", "async def"])
def test_after_idle_sessions_were_terminated_the_next_jobs_complete(
    worker_thread: StartWorker, gates: Any, monkeypatch: pytest.MonkeyPatch, checks: bool, kind: str
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_HEALTH_CHECKS", checks)
    monkeypatch.setattr("django_skipqueue.worker.attempts.event_loop.CONNECTION_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(module, "UNCHANGED_SECONDS", 0.0)
    worker = worker_thread(concurrency=4)
    if kind:
        worker_jobs.awrite.defer("open")
        wait_for_statuses(completed=1)
    else:
        open_a_connection_in_each_thread(worker, gates, 4)
    wait_until(lambda: len(worker.sessions()) == (1 if kind else 4))
    terminate(worker.sessions())
    completed_before = Job.objects.count()
    for number in range(8):
        (worker_jobs.awrite if kind else write).defer(f"after {number}")
    wait_for_statuses(completed=completed_before + 8)


@pytest.mark.usefixtures("_connections_kept")
def test_with_conn_health_checks_django_checks_the_connection_for_each_job(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CONN_HEALTH_CHECKS, Django checks the connection before the first statement, and finds each dead session."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_HEALTH_CHECKS", True)
    write.defer("before")
    worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    health_check_job = worker_jobs.is_health_checked.defer()
    wait_for_statuses(completed=2)
    health_check_job.refresh_from_db()
    assert health_check_job.result == [False, True]


def test_an_idle_connection_older_than_conn_max_age_is_replaced(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 0.5)
    first_job = worker_jobs.backend_pid.defer()
    worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    threading.Event().wait(0.6)  # the age of a connection cannot be observed, so wait
    second_job = worker_jobs.backend_pid.defer()
    wait_for_statuses(completed=2)
    for job in (first_job, second_job):
        job.refresh_from_db()
    assert first_job.result != second_job.result


@pytest.mark.parametrize("task", [write, worker_jobs.awrite], ids=["def", "async def"])
@pytest.mark.parametrize(("conn_max_age", "is_kept"), [(0, False), (None, True)])
def test_an_idle_thread_keeps_its_connection_unless_conn_max_age_is_zero(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch, task: Any, conn_max_age: int | None, is_kept: bool
) -> None:
    """If CONN_MAX_AGE is 0, the thread keeps no connection: a session may hold a lock."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", conn_max_age)
    task.defer("once")
    worker = worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    if is_kept:
        threading.Event().wait(module.IDLE_TIME + 0.5)
        assert len(worker.sessions()) == 1
    wait_until(lambda: len(worker.sessions()) == is_kept, "the session is over")


@pytest.mark.usefixtures("_connections_kept")
def test_a_kept_connection_is_closed_after_a_long_idle_time(
    worker_thread: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_TIME", 0.05)
    monkeypatch.setattr(module, "LONGEST_IDLE_TIME", 0.2)
    write.defer("once")
    worker = worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    wait_until(lambda: not worker.sessions(), "the session is over")


# After a job


def test_later_jobs_do_not_get_the_session_that_a_failed_attempt_changed(worker_thread: StartWorker) -> None:
    """CONN_MAX_AGE is 0, which is Django's default."""
    session_changed.defer("search_path", then="raise")
    show.defer("search_path")
    worker_thread(concurrency=1)
    wait_for_statuses(failed=1, completed=1)
    assert Job.objects.completed().get().result == '"$user", public'


@pytest.mark.usefixtures("_connections_kept")
def test_execute_wrappers_that_a_task_left_are_removed_but_the_projects_stay(worker_thread: StartWorker) -> None:
    def add_wrapper(connection: Any, **_: Any) -> None:
        if threading.current_thread().name.startswith("skipqueue-"):
            connection.execute_wrappers.append(worker_jobs.pass_on)

    connection_created.connect(add_wrapper)
    try:
        write.defer("first")
        worker_jobs.leave_execute_wrapper.defer()
        worker_jobs.execute_wrappers.defer()
        worker_thread(concurrency=1)
        wait_for_statuses(completed=3)
    finally:
        connection_created.disconnect(add_wrapper)
    job = Job.objects.get(task__endswith=".execute_wrappers")
    assert job.result == ["pass_on"]


@pytest.mark.usefixtures("_connections_kept")
def test_a_connection_that_was_left_in_pipeline_mode_is_not_used(worker_thread: StartWorker) -> None:
    worker_jobs.leave_pipeline.defer()
    write.defer("after")
    worker_thread(concurrency=1)
    wait_for_statuses(completed=2)
    assert Ledger.objects.count() == 1


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("later", [False, True], ids=["after the job", "before the next one"])
def test_if_a_connection_raises_on_close_later_jobs_get_another_thread_and_no_outcome_is_lost(
    worker_thread: StartWorker, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    worker_jobs.break_close.defer(later)
    worker = worker_thread(concurrency=1)
    wait_for_statuses(completed=1)
    if not later:
        wait_until(lambda: "thread replaced worker=w" in caplog.text)
    write.defer("after")
    wait_for_statuses(completed=2)
    assert worker.code is None


# A connection pool in the project's settings

POOL = """
DATABASES["default"] = {
    **DATABASES["default"],
    "OPTIONS": {**DATABASES["default"].get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": 2, "timeout": 2}},
}
"""

POOL_JOBS = """
    import time

    from django.db import connection
    from django_skipqueue import job
    from tests.app.models import Ledger


    @job(max_attempts=1)
    def late():
        connection.close()
        while True:
            Ledger.objects.count()
            connection.close()


    @job(max_attempts=1)
    def victim():
        Ledger.objects.create(entry="victim")
        return connection.pool is None


    @job(max_attempts=1)
    async def avictim():
        await Ledger.objects.acreate(entry="victim")
"""


def test_timed_out_jobs_return_their_connections_to_the_pool_of_the_project(runworker: Callable[..., ManagePy]) -> None:
    pytest.importorskip("psycopg_pool")
    for number in range(30):
        Job.objects.enqueue("extra.jobs.late", max_attempts=1, timeout=0.05 + number / 1000)
    runworker("-c", "4", jobs=POOL_JOBS, settings=POOL)
    wait_for_statuses(failed=30, deadline=60)
    for _ in range(10):
        Job.objects.enqueue("extra.jobs.victim", max_attempts=1)
        Job.objects.enqueue("extra.jobs.avictim", max_attempts=1)
    wait_for_statuses(failed=30, completed=20, deadline=60)
    assert Ledger.objects.count() == 20
    assert all(Job.objects.completed().filter(task="extra.jobs.victim").values_list("result", flat=True))


# A worker that dies after the job has ended

FATAL_JOBS = """
    import os

    from django_skipqueue import job
    from tests.app.models import Ledger


    @job(max_attempts=2)
    def closes_all_files():
        os.closerange(3, 1000)
"""


def test_a_job_whose_leftovers_kill_the_worker_is_charged_for_the_death(runworker: Callable[..., ManagePy]) -> None:
    """The job's attempt has ended well. If the job were released without a charge, it would kill each next worker."""
    job = Job.objects.enqueue("extra.jobs.closes_all_files", max_attempts=2)
    runworker("-c", "1", jobs=FATAL_JOBS)
    wait_for_statuses(failed=1, deadline=90)
    job.refresh_from_db()
    assert (job.attempts, job.last_error.split(":")[0]) == (2, "WorkerDied")
    noop.defer()
    wait_for_statuses(failed=1, completed=1, deadline=60)

"""Rules about workers and clocks: whether workers are alive and on time, and serve every queue."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from django_skipqueue.console.rules import server
from django_skipqueue.models import Queue, Worker

from ...app.rows import make_job, make_worker
from .conftest import STORE, FindingsOf, StoreOfRows, run_sql


@pytest.mark.core
def test_waiting_jobs_without_a_live_worker_are_critical(findings_of: FindingsOf) -> None:
    (finding,) = findings_of("no-worker")
    assert (finding.severity, finding.found) == ("warning", "No job is waiting.")
    make_job("scheduled")
    assert [finding.severity for finding in findings_of("no-worker")] == ["warning"]
    make_job("scheduled", run_after=timedelta(minutes=-1))
    (finding,) = findings_of("no-worker")
    assert (finding.severity, finding.command) == ("critical", "python manage.py runworker")
    assert finding.since is None, "nobody knows when the last worker ended"
    make_worker(name="w1", heartbeat=timedelta(minutes=-9))
    last_worker = make_worker(name="w2", heartbeat=timedelta(minutes=-5))
    last_worker.refresh_from_db()
    (finding,) = findings_of("no-worker")
    assert finding.since is not None
    assert abs(finding.since - last_worker.heartbeat_at) < timedelta(seconds=1), (
        "the finding begins with the last heartbeat of any worker"
    )
    make_worker()
    assert findings_of("no-worker") == []


@pytest.mark.core
def test_a_late_worker_is_a_warning_and_a_dead_worker_an_info(findings_of: FindingsOf) -> None:
    make_worker(name="web-1/1")
    assert findings_of("late-worker") == findings_of("dead-worker") == []
    make_worker(name="web-2/1", heartbeat=timedelta(seconds=-40))
    make_worker(name="web-3/1", heartbeat=timedelta(hours=-5))
    (late,), (dead,) = findings_of("late-worker"), findings_of("dead-worker")
    assert re.match(r"web-2/1, last heartbeat [45]\d s ago", late.found)
    assert dead.found == "web-3/1, last heartbeat 5 h ago"
    assert (late.severity, dead.severity) == ("warning", "info")


def test_of_many_dead_workers_the_first_ten_are_named(findings_of: FindingsOf) -> None:
    for _ in range(12):
        make_worker(heartbeat=timedelta(hours=-1))
    (dead,) = findings_of("dead-worker")
    assert dead.found.count("last heartbeat") == 10
    assert dead.found.endswith("; …")


@pytest.mark.core
def test_a_queue_without_a_worker_has_the_command_that_serves_it(findings_of: FindingsOf) -> None:
    make_worker(queues=["mail"])
    make_job(queue_name="mail")
    assert findings_of("queue-without-worker") == []
    make_job(queue_name="re ports", run_after=timedelta(hours=-3))
    (finding,) = findings_of("queue-without-worker")
    assert finding.severity == "critical"
    assert finding.title.startswith("No worker serves queue re ports: 1 job has waited since ")
    assert finding.found == "The first job has waited for 3 h."
    assert (finding.subject, finding.since is None) == ("re ports", False)
    assert finding.command == "python manage.py runworker --queues 're ports'"
    make_job(queue_name="sms")
    assert [finding.subject for finding in findings_of("queue-without-worker")] == ["re ports", "sms"]
    make_worker(queues=[])
    assert findings_of("queue-without-worker") == []


@pytest.mark.core
def test_a_paused_queue_needs_no_worker(findings_of: FindingsOf) -> None:
    make_worker(queues=["mail"])
    make_job(queue_name="reports")
    Queue.pause("reports")
    assert findings_of("queue-without-worker") == []
    Queue.resume("reports")
    assert findings_of("queue-without-worker") != []


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (1, 0), (60, 1), (-60, 1)])
def test_a_clock_of_the_database_that_differs_by_a_minute_is_found(seconds: float, expected: int) -> None:
    clock = datetime.now(UTC) + timedelta(seconds=seconds)
    findings = list(server.clock_skew(StoreOfRows((clock,))))
    assert [finding.severity for finding in findings] == ["warning"] * expected


def test_the_clock_of_this_process_is_compared_with_the_databases(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(server.clock_skew(STORE)) == []
    monkeypatch.setattr(server, "LARGEST_CLOCK_SKEW", -1.0)
    assert len(list(server.clock_skew(STORE))) == 1


def test_control_characters_in_the_name_of_a_worker_are_removed(findings_of: FindingsOf) -> None:
    make_worker(name="x\ny\x1b[2J", heartbeat=timedelta(hours=-1))
    (finding,) = findings_of("dead-worker")
    assert finding.found.isprintable()


def test_a_dead_worker_is_a_warning_until_its_jobs_are_recovered(findings_of: FindingsOf) -> None:
    dead = make_worker(heartbeat=timedelta(hours=-5))
    (finding,) = findings_of("dead-worker")
    assert (finding.severity, "within WORKER_TIMEOUT (1 min)" in finding.advice) == ("warning", True)
    job_of_dead_worker = make_job("running", locked_by=dead.id)
    make_worker()
    assert [finding.severity for finding in findings_of("dead-worker")] == ["warning"]
    job_of_dead_worker.delete()
    (finding,) = findings_of("dead-worker")
    assert (finding.severity, finding.command) == ("info", "")


def test_live_workers_of_several_versions_are_named(findings_of: FindingsOf) -> None:
    make_worker(name="web-1/1", version="0.2.0")
    make_worker(name="web-2/1", version="0.1.0", heartbeat=timedelta(hours=-1))
    assert findings_of("worker-versions") == []
    make_worker(name="web-3/1", version="0.1.0")
    make_worker(name="web-4/1", version="")
    (finding,) = findings_of("worker-versions")
    assert finding.severity == "info", "a deployment may be in progress"
    assert finding.found == "unknown: web-4/1. 0.1.0: web-3/1. 0.2.0: web-1/1."
    Worker.objects.update(started_at=F("started_at") - timedelta(minutes=11))
    assert [finding.severity for finding in findings_of("worker-versions")] == ["warning"]


def test_jobs_in_a_paused_queue_are_named_with_the_command_that_resumes_it(findings_of: FindingsOf) -> None:
    make_worker()
    Queue.pause("re ports")
    assert findings_of("paused-queue") == []
    make_job(queue_name="re ports", run_after=timedelta(minutes=-59))
    make_job(queue_name="mail")
    (finding,) = findings_of("paused-queue")
    assert finding.severity == "info"
    assert finding.title == "1 job waits in the paused queue re ports"
    assert (finding.found, finding.subject) == ("The first has waited for 59 min.", "re ports")
    assert finding.command == "python manage.py skipqueue resume 're ports'"


def test_jobs_that_wait_for_long_in_a_paused_queue_are_a_problem(findings_of: FindingsOf, settings: Any) -> None:
    make_worker()
    for name in ("mail", "nightly"):
        Queue.pause(name)
        make_job(queue_name=name, run_after=timedelta(hours=-3))
    assert [finding.severity for finding in findings_of("paused-queue")] == ["warning", "warning"]
    settings.SKIPQUEUE = {"RULES": {"paused-queue": {"nightly": None, "*": 3 * 3_600 - 60}}}
    assert [(finding.subject, finding.severity) for finding in findings_of("paused-queue")] == [
        ("mail", "warning"),
        ("nightly", "info"),
    ]
    settings.SKIPQUEUE = {"RULES": {"paused-queue": None}}
    assert findings_of("paused-queue") == []


ROLES = ("tests_supervisor", "tests worker")


@pytest.fixture
def roles(transactional_db: None) -> Iterator[None]:
    """Make two roles that may log in with the password `x`."""
    with connection.cursor() as cursor:
        for role in ROLES:
            cursor.execute(f'DROP ROLE IF EXISTS "{role}"; CREATE ROLE "{role}" LOGIN PASSWORD \'x\'')
        yield
        for role in ROLES:
            cursor.execute(f'DROP ROLE "{role}"')


@pytest.mark.usefixtures("roles")
def test_the_command_grants_a_supervisor_the_right_to_end_the_sessions_of_workers(
    findings_of: FindingsOf, connect: Callable[..., Any]
) -> None:
    supervisor, worker = ROLES
    connect(user=supervisor, password="x", application_name="skipqueue supervisor host")
    connect(user=supervisor, password="x", application_name="skipqueue:0123456789ab")
    assert findings_of("unendable-session") == []
    session_of_worker = connect(user=worker, password="x", application_name="skipqueue:0123456789ac")
    (finding,) = findings_of("unendable-session")
    assert finding.severity == "warning"
    run_sql(finding.command)
    assert findings_of("unendable-session") == []
    session_of_worker.close()

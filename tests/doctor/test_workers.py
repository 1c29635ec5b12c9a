"""Rules about workers and clocks: whether workers are alive and on time, and serve every queue."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.console.rules import server
from django_skipqueue.models import Queue

from ..app.rows import make_job, make_worker
from .conftest import STORE, Found, Rows, paste


@pytest.mark.core
def test_no_worker_is_critical_when_jobs_wait(found: Found) -> None:
    (finding,) = found("no-worker")
    assert (finding.severity, finding.found) == ("warning", "No job is waiting.")
    make_job("scheduled")
    assert [each.severity for each in found("no-worker")] == ["warning"]
    make_job("scheduled", run_after=timedelta(minutes=-1))
    (finding,) = found("no-worker")
    assert (finding.severity, finding.command) == ("critical", "python manage.py runworker")
    assert finding.since is None, "nobody knows"
    make_worker(name="w1", heartbeat=timedelta(minutes=-9))
    last = make_worker(name="w2", heartbeat=timedelta(minutes=-5))
    last.refresh_from_db()
    (finding,) = found("no-worker")
    assert finding.since is not None
    assert abs(finding.since - last.heartbeat_at) < timedelta(seconds=1), "since the last heartbeat of any"
    make_worker()
    assert found("no-worker") == []


@pytest.mark.core
def test_a_late_worker_and_a_dead_one(found: Found) -> None:
    make_worker(name="web-1/1")
    assert found("late-worker") == found("dead-worker") == []
    make_worker(name="web-2/1", heartbeat=timedelta(seconds=-40))
    make_worker(name="web-3/1", heartbeat=timedelta(hours=-5))
    (late,), (dead,) = found("late-worker"), found("dead-worker")
    assert re.match(r"web-2/1, last heartbeat [45]\d s ago", late.found)
    assert dead.found == "web-3/1, last heartbeat 5 h ago"
    assert (late.severity, dead.severity) == ("warning", "info")


def test_of_many_dead_workers_the_first_are_named(found: Found) -> None:
    for _ in range(12):
        make_worker(heartbeat=timedelta(hours=-1))
    (dead,) = found("dead-worker")
    assert dead.found.count("last heartbeat") == 10
    assert dead.found.endswith("; …")


@pytest.mark.core
def test_a_queue_without_a_worker_has_the_command_that_serves_it(found: Found) -> None:
    make_worker(queues=["mail"])
    make_job(queue_name="mail")
    assert found("queue-without-worker") == []
    make_job(queue_name="re ports", run_after=timedelta(hours=-3))
    (finding,) = found("queue-without-worker")
    assert finding.severity == "critical"
    assert finding.title.startswith("No worker serves queue re ports: 1 job has waited since ")
    assert finding.found == "The first job has waited for 3 h."
    assert (finding.subject, finding.since is None) == ("re ports", False)
    assert finding.command == "python manage.py runworker --queues 're ports'"
    make_job(queue_name="sms")
    assert [each.subject for each in found("queue-without-worker")] == ["re ports", "sms"]
    make_worker(queues=[])
    assert found("queue-without-worker") == []


@pytest.mark.core
def test_a_paused_queue_needs_no_worker(found: Found) -> None:
    make_worker(queues=["mail"])
    make_job(queue_name="reports")
    Queue.pause("reports")
    assert found("queue-without-worker") == []
    Queue.resume("reports")
    assert found("queue-without-worker") != []


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (1, 0), (60, 1), (-60, 1)])
def test_clocks_that_differ(seconds: float, expected: int) -> None:
    clock = datetime.now(UTC) + timedelta(seconds=seconds)
    findings = list(server.clock_skew(Rows((clock,))))
    assert [each.severity for each in findings] == ["warning"] * expected


def test_the_clock_of_the_database_is_read(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(server.clock_skew(STORE)) == []
    monkeypatch.setattr(server, "LARGEST_CLOCK_SKEW", -1.0)
    assert len(list(server.clock_skew(STORE))) == 1


def test_a_name_cannot_forge_a_line(found: Found) -> None:
    make_worker(name="x\ny\x1b[2J", heartbeat=timedelta(hours=-1))
    (finding,) = found("dead-worker")
    assert finding.found.isprintable()


def test_a_dead_worker_is_a_warning_until_recovery(found: Found) -> None:
    dead = make_worker(heartbeat=timedelta(hours=-5))
    (finding,) = found("dead-worker")
    assert (finding.severity, "within WORKER_TIMEOUT (1 min)" in finding.advice) == ("warning", True)
    held = make_job("running", locked_by=dead.id)
    make_worker()
    assert [each.severity for each in found("dead-worker")] == ["warning"]
    held.delete()
    (finding,) = found("dead-worker")
    assert (finding.severity, finding.command) == ("info", "")


def test_jobs_in_a_paused_queue_are_named_with_the_command_that_resumes_it(found: Found) -> None:
    make_worker()
    Queue.pause("re ports")
    assert found("paused-queue") == []
    make_job(queue_name="re ports", run_after=timedelta(minutes=-59))
    make_job(queue_name="mail")
    (finding,) = found("paused-queue")
    assert finding.severity == "info"
    assert finding.title == "1 job waits in the paused queue re ports"
    assert (finding.found, finding.subject) == ("The first has waited for 59 min.", "re ports")
    assert finding.command == "python manage.py skipqueue resume 're ports'"


def test_jobs_that_wait_for_long_in_a_paused_queue_are_a_problem(found: Found, settings: Any) -> None:
    make_worker()
    for name in ("mail", "nightly"):
        Queue.pause(name)
        make_job(queue_name=name, run_after=timedelta(hours=-3))
    assert [each.severity for each in found("paused-queue")] == ["warning", "warning"]
    settings.SKIPQUEUE = {"RULES": {"paused-queue": {"nightly": None, "*": 3 * 3_600 - 60}}}
    assert [(each.subject, each.severity) for each in found("paused-queue")] == [
        ("mail", "warning"),
        ("nightly", "info"),
    ]
    settings.SKIPQUEUE = {"RULES": {"paused-queue": None}}
    assert found("paused-queue") == []


ROLES = ("tests_supervisor", "tests worker")


@pytest.fixture
def roles(transactional_db: None) -> Iterator[None]:
    """Two roles that may connect with the password `x`."""
    with connection.cursor() as cursor:
        for role in ROLES:
            cursor.execute(f'DROP ROLE IF EXISTS "{role}"; CREATE ROLE "{role}" LOGIN PASSWORD \'x\'')
        yield
        for role in ROLES:
            cursor.execute(f'DROP ROLE "{role}"')


@pytest.mark.usefixtures("roles")
def test_a_supervisor_that_may_not_end_the_sessions_of_workers_is_given_the_grant(
    found: Found, connect: Callable[..., Any]
) -> None:
    supervisor, worker = ROLES
    connect(user=supervisor, password="x", application_name="skipqueue supervisor host")
    connect(user=supervisor, password="x", application_name="skipqueue:0123456789ab")
    assert found("unendable-session") == []
    ended = connect(user=worker, password="x", application_name="skipqueue:0123456789ac")
    (finding,) = found("unendable-session")
    assert finding.severity == "warning"
    paste(finding.command)
    assert found("unendable-session") == []
    ended.close()

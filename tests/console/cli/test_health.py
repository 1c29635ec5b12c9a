"""`skipqueue health`: the probe of a container."""

import os
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_skipqueue.console.cli.subcommand import Exit

from ...app.rows import make_job, make_worker
from ...app.sessions import Session
from ...harness.proxy import Proxy
from ...harness.reached import NOBODY, reached_at
from .running import skipqueue

pytestmark = pytest.mark.django_db(transaction=True)

THIS_HOST = socket.gethostname()


def test_a_worker_of_this_host_is_healthy() -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST, heartbeat=timedelta(seconds=-7))
    make_worker(name="web-1/2", hostname=THIS_HOST, heartbeat=timedelta(seconds=-90))
    result = skipqueue("health")
    assert (result.code, result.err) == (0, "")
    line, verdict = result.out.splitlines()
    age = re.fullmatch(r"healthy: web-1/1 wrote its last heartbeat ([\d.]+) s ago", line)
    assert age
    assert 7 <= float(age[1]) < 60
    assert verdict == "verdict: All is well."


def test_critical_findings_do_not_change_the_exit_code() -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST, queues=["mail"])
    assert skipqueue("health").out.endswith("\nverdict: All is well.\n")
    for name in ("a", "b"):
        make_job(queue_name=name)
    result = skipqueue("health")
    assert result.code == 0
    verdict = result.out.splitlines()[-1]
    problems = verdict.removeprefix("verdict: ").split("; ")
    first, second = (problem for problem in problems if "took too long" not in problem)  # as rules do on a slow machine
    assert first.startswith("CRITICAL: No worker serves queue a: 1 job has waited since ")
    assert second.startswith("CRITICAL: No worker serves queue b: 1 job has waited since ")


def test_a_verdict_that_takes_long_does_not_delay_the_probe(session: Callable[[], Session]) -> None:
    make_worker(hostname=THIS_HOST)
    locking_session = session()
    locking_session.begin()
    locking_session(execute, "LOCK TABLE skipqueue_job IN ACCESS EXCLUSIVE MODE")
    result = skipqueue("health", "--timeout", "2s")
    locking_session.rollback()
    assert result.code == 0
    assert "rules could not be applied" in result.out


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


SOURCE_OF_SILENT_VERDICT = """
import time
from django_skipqueue.console.rules import verdict

verdict.Verdict.now = lambda *_, **__: time.sleep(600)
"""


@pytest.mark.parametrize(("age", "code"), [(0, 0), (90, Exit.NEGATIVE)])
def test_the_exit_code_depends_only_on_the_heartbeat_if_the_server_falls_silent(
    manage: Callable[..., Any], age: int, code: int
) -> None:
    make_worker(name="pod-7/1", hostname="elsewhere", heartbeat=timedelta(seconds=-age))
    process = manage("skipqueue", "health", "--name", "pod-7", "--timeout", "1s", jobs=SOURCE_OF_SILENT_VERDICT)
    assert process.wait(deadline=30) == code
    assert "healthy: pod-7/1" in process.log
    assert process.log.endswith("verdict: no answer from the database within 1 s\n")


def test_a_heartbeat_that_is_too_old_is_unhealthy() -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST, heartbeat=timedelta(seconds=-90))
    result = skipqueue("health")
    assert result.code == Exit.NEGATIVE
    assert re.match(r"verdict: WARNING: No worker is alive \(has lasted 1m3\ds\); ", result.out)
    assert re.fullmatch(
        r"unhealthy: web-1/1 wrote its last heartbeat 1 min [3-5]\d s ago, more than 1 min\n", result.err
    )
    assert skipqueue("health", "--max-age", "2m").code == 0


def test_workers_of_other_hosts_do_not_count() -> None:
    make_worker(name="web-2/1", hostname="elsewhere")
    result = skipqueue("health")
    assert (result.code, result.err) == (Exit.NEGATIVE, f"unhealthy: no worker on {THIS_HOST}\n")


@pytest.mark.parametrize(
    ("name", "code"), [("web-2", 0), ("web-2/1", 0), ("web", Exit.NEGATIVE), ("web_2", Exit.NEGATIVE)]
)
def test_the_option_name_takes_the_name_of_a_supervisor_or_of_a_worker(name: str, code: int) -> None:
    make_worker(name="web-2/1", hostname="elsewhere")
    assert skipqueue("health", "--name", name).code == code


def test_with_the_option_queue_a_worker_must_serve_this_queue() -> None:
    make_worker(hostname=THIS_HOST, queues=["mail"])
    assert skipqueue("health", "--queue", "mail").code == 0
    result = skipqueue("health", "--queue", "reports")
    assert (result.code, result.err) == (
        Exit.NEGATIVE,
        f"unhealthy: no worker on {THIS_HOST} serves the queue reports\n",
    )
    make_worker(hostname=THIS_HOST, queues=[])
    assert skipqueue("health", "--queue", "reports").code == 0


def test_the_name_of_the_supervisor_may_come_from_the_environment(manage: Callable[..., Any]) -> None:
    make_worker(name="pod-7/1", hostname="elsewhere")
    process = manage("skipqueue", "health", environment={"SKIPQUEUE_NAME": "pod-7"})
    assert process.wait() == 0
    assert "healthy: pod-7/1" in process.log


def test_the_probe_exits_with_1_if_the_database_cannot_be_reached(manage: Callable[..., Any]) -> None:
    process = manage("skipqueue", "health", settings="DATABASES['default']['PORT'] = 1")
    assert process.wait() == 1
    assert "cannot be reached" in process.log
    assert process.log.count("\n") == 1


def test_the_probe_ends_in_time_if_the_database_never_answers(manage: Callable[..., Any]) -> None:
    """The test's server accepts connections and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        port = silent_server.getsockname()[1]
        database_settings = f"DATABASES['default'].update(HOST='127.0.0.1', PORT={port}, OPTIONS={{}})"
        process = manage("skipqueue", "health", "--timeout", "1s", settings=database_settings)
        assert process.wait(deadline=30) == 1  # the timeout, and the start of Django on a busy machine
    assert process.log == "unhealthy: no answer from the database within 1 s\n"


def test_a_real_worker_is_healthy(runworker: Callable[..., Any]) -> None:
    from ...harness.processes import workers

    runworker("--name", f"probe-{os.getpid()}")
    workers(1)
    assert skipqueue("health", "--name", f"probe-{os.getpid()}").code == 0
    assert skipqueue("health").code == 0


# Several databases


@pytest.fixture
def two_databases(settings: Any) -> tuple[str, ...]:
    settings.SKIPQUEUE = {"DATABASES": ("default", "other")}
    return "default", "other"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_probe_prints_a_line_for_each_database(two_databases: tuple[str, ...]) -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST)
    result = skipqueue("health", "--timeout", "40s")
    assert result.code == Exit.NEGATIVE
    assert result.out.startswith("default: healthy: web-1/1 wrote")
    assert result.err == f"other: unhealthy: no worker on {THIS_HOST}\n"
    make_worker(name="web-1/2", hostname=THIS_HOST, using="other")
    assert skipqueue("health", "--timeout", "40s").code == 0
    assert skipqueue("health", "--database", "other").out.startswith("healthy: web-1/2")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_probe_succeeds_while_one_of_two_databases_is_down(two_databases: tuple[str, ...]) -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST)
    with reached_at("other", NOBODY):
        result = skipqueue("health", "--timeout", "40s")
        assert (result.code, result.out.startswith("default: healthy")) == (0, True)
        assert "other: cannot be used" in result.err
        with reached_at("default", NOBODY):
            assert skipqueue("health", "--timeout", "40s").code == Exit.ERROR


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_silent_database_does_not_use_up_the_time_for_the_other_database(two_databases: tuple[str, ...]) -> None:
    make_worker(name="web-1/1", hostname=THIS_HOST)
    proxy = Proxy()
    proxy.stall()
    with reached_at("other", proxy.settings):
        result = skipqueue("health", "--timeout", "3s")
        proxy.close()
    assert (result.code, result.out.startswith("default: healthy")) == (0, True)


def test_the_probe_names_an_alias_that_does_not_exist(settings: Any) -> None:
    settings.SKIPQUEUE = {"DATABASES": ("default", "queue_9")}
    result = skipqueue("health")
    assert result.code == Exit.ERROR
    assert "DATABASES has no alias 'queue_9'" in result.err

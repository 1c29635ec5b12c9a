"""`Steward`, the parent in a `runworker` for two databases: trouble with one database leaves the other alone."""

import os
import signal
from datetime import datetime

import psutil
import pytest
from django.db import connections

from django_skipqueue.models import Job, Worker

from ...app import jobs
from ...app.models import Ledger
from ...app.waiting import wait_until
from ...harness.processes import ManagePy, children
from ...harness.proxy import Proxy
from .conftest import ALIASES, Run, behind

HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def hold_in_both() -> None:
    """Defer a job into each database that runs until `go`."""
    for alias in ALIASES:
        jobs.record_and_hold.using(database=alias, max_attempts=2).defer(alias)
    wait_until(lambda: Ledger.objects.filter(entry__in=ALIASES).count() == 2, "both run")


def go() -> None:
    Ledger.objects.create(entry="go")


def count(alias: str, status: str) -> int:
    return Job.objects.using(alias).filter(status=status).count()


def wait_for_completed(alias: str, number: int = 1) -> None:
    wait_until(lambda: count(alias, "completed") == number, f"{number} jobs of {alias} are completed")


def worker(alias: str) -> Worker:
    """The row of the only worker of this database, once there is one."""
    wait_until(lambda: Worker.objects.using(alias).exists(), f"{alias} has a worker")
    return Worker.objects.using(alias).get()


def supervisors(process: ManagePy) -> dict[str, int]:
    """The process ids of both supervisors, by alias, once they run a worker each."""
    pids = {alias: worker(alias).pid for alias in ALIASES}
    return {alias: psutil.Process(pid).ppid() for alias, pid in pids.items()}


# From end to end


def test_the_jobs_of_both_are_run_and_the_names_say_where(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
        wait_for_completed(alias)
        assert worker(alias).name == f"w@{alias}/1"
    assert process.log.count("w serves every queue that has jobs") == 1
    assert process.log.count("on each of the databases 'default', 'other'") == 1
    assert sorted(supervisors(process).values()) == sorted(children(process.process.pid))


def test_a_drain_ends_when_both_databases_are_empty(steward: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer_many([()] * 50)
    assert (process := steward("--drain")).wait() == 0
    assert [count(alias, "completed") for alias in ALIASES] == [50, 50]
    assert "died" not in process.log


def test_runworker_can_serve_one_of_several_databases(steward: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    process = steward("--drain", "--database", "other")
    assert process.wait() == 0
    assert (count("default", "queued"), count("other", "completed")) == (1, 1)
    assert "on database 'other'" in process.log
    assert "worker=w/1" in process.log


def test_several_can_be_chosen_without_the_setting(runworker: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    assert runworker("--drain", environment={"SKIPQUEUE_DATABASE": " other, default,other"}).wait() == 0
    assert [count(alias, "completed") for alias in ALIASES] == [1, 1]


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ("", ("--database", "default,nosuch"), "no alias 'nosuch'"),
        ("", ("--database", ","), "names no database"),
        ('DATABASES["other"] = {**DATABASES["other"], "NAME": "postgres"}', (), "manage.py migrate django_skipqueue"),
    ],
    ids=["unknown alias", "none", "unmigrated"],
)
def test_an_error_of_one_is_said_before_anything_starts(
    steward: Run, settings: str, arguments: tuple[str, ...], expected: str
) -> None:
    process = steward(*arguments, settings=settings)
    assert process.wait() == 1
    assert expected in process.log
    assert "serves every queue" not in process.log
    assert "Traceback" not in process.log


# Signals


@pytest.mark.parametrize("to_all", [False, True], ids=["steward", "all"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_what_runs(steward: Run, to_all: bool, number: signal.Signals) -> None:
    process = steward("--poll-interval", HOUR)
    hold_in_both()
    (process.send_to_group if to_all else process.send)(number)
    process.wait_for(f"supervisor stopping signal={number.name}")
    assert process.process.poll() is None
    go()
    assert process.wait() == 0
    assert [count(alias, "completed") for alias in ALIASES] == [1, 1]
    assert not any(Worker.objects.using(alias).exists() for alias in ALIASES)
    assert process.log.count("supervisor stopping") == 1
    assert "stopping now" not in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("to_all", [False, True], ids=["steward", "all"])
def test_the_second_signal_releases_what_runs(steward: Run, to_all: bool) -> None:
    process = steward("--poll-interval", HOUR, "--shutdown-timeout", HOUR)
    hold_in_both()
    send = process.send_to_group if to_all else process.send
    send(signal.SIGINT)
    process.wait_for("supervisor stopping")
    send(signal.SIGINT)
    assert process.wait() == 0
    for alias in ALIASES:
        assert list(Job.objects.using(alias).values_list("status", "attempts")) == [("queued", 0)]


def test_a_signal_to_a_supervisor_alone_is_ignored(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    pids = supervisors(process)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pids["other"], number)
    jobs.noop.using(database="other").defer()
    wait_for_completed("other")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert "supervisor died" not in process.log
    assert process.log.count("supervisor stopping") == 1, "that of the steward"


# Deaths


def test_a_killed_supervisor_is_replaced_while_the_other_database_goes_on(steward: Run) -> None:
    process = steward("--poll-interval", HOUR, "--worker-timeout", "2", "--shutdown-timeout", "0.1")
    hold_in_both()
    pids = supervisors(process)
    before = worker("default").id
    psutil.Process(worker("other").pid).kill()
    os.kill(pids["other"], signal.SIGKILL)
    process.wait_for('supervisor died supervisor=w@other cause="signal 9 (SIGKILL)" restart_in=0s')
    go()
    wait_for_completed("other")
    wait_for_completed("default")
    assert Job.objects.using("other").get().attempts == 2
    assert Job.objects.using("default").get().attempts == 1
    assert worker("default").id == before
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_a_supervisor_killed_while_stopping_sets_the_exit_code(steward: Run) -> None:
    process = steward("--poll-interval", HOUR, "--shutdown-timeout", HOUR)
    hold_in_both()
    pids = supervisors(process)
    process.send(signal.SIGTERM)
    process.wait_for("supervisor stopping")
    os.kill(pids["other"], signal.SIGKILL)
    process.wait_for('supervisor died supervisor=w@other cause="signal 9 (SIGKILL)"')
    go()
    assert process.wait() == 128 + signal.SIGKILL
    assert "restart_in" not in process.log


def test_when_the_steward_is_killed_all_end_after_their_jobs(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    hold_in_both()
    everyone = psutil.Process(process.process.pid).children(recursive=True)
    process.send(signal.SIGKILL)
    for alias in ALIASES:
        process.wait_for(f"steward gone database={alias} supervisor=w@{alias} stopping_within=30s")
    go()
    for alias in ALIASES:
        wait_for_completed(alias)
    wait_until(lambda: not any(each.is_running() for each in everyone), "all have ended")
    assert not any(Worker.objects.using(alias).exists() for alias in ALIASES)


# One database in trouble


def beat(alias: str) -> datetime:
    return Worker.objects.using(alias).get().heartbeat_at


def test_a_stalled_database_delays_no_job_and_no_heartbeat_of_another_database(steward: Run, proxy: Proxy) -> None:
    process = steward(settings=behind(other=proxy), skipqueue={"HEARTBEAT_INTERVAL": 0.2})
    supervisors(process)
    proxy.stall()
    seen = beat("default")
    for number in range(1, 4):
        jobs.noop.defer()
        wait_until(lambda number=number: count("default", "completed") == number, "it runs at once", deadline=5)  # type: ignore[misc]
        wait_until(lambda seen=seen: beat("default") > seen, "its heartbeats go on", deadline=5)  # type: ignore[misc]
        seen = beat("default")
    jobs.noop.using(database="other").defer()
    assert count("other", "completed") == 0
    proxy.flow()
    wait_for_completed("other")


@pytest.mark.parametrize("how", ["refuse", "stall"])
def test_a_database_that_is_unreachable_at_the_start_is_served_when_it_is_back(
    steward: Run, proxy: Proxy, how: str
) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    getattr(proxy, how)()
    process = steward("-q", "default", settings=behind(other=proxy))
    process.wait_for('database unreachable database=other hint="it is served once it can be reached"')
    wait_for_completed("default")
    assert connections["other"].settings_dict["PORT"] != proxy.port
    proxy.refuse(False)
    proxy.flow()
    wait_for_completed("other")
    process.send(signal.SIGTERM)
    assert process.wait() == 0

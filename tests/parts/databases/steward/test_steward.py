"""`Steward`, the parent in a `runworker` for two databases: trouble with one database leaves the other alone."""

import os
import signal
from datetime import datetime

import psutil
import pytest
from django.db import connections

from django_skipqueue.models import Job, Worker

from ....app import jobs
from ....app.models import Ledger
from ....app.waiting import wait_until
from ....harness.processes import ManagePy, children
from ....harness.proxy import Proxy
from .conftest import ALIASES, Run, behind

HOUR = "3600"

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def hold_a_job_in_each_database() -> None:
    """Defer a job into each database. The jobs run until `end_held_jobs`."""
    for alias in ALIASES:
        jobs.record_and_hold.using(database=alias, max_attempts=2).defer(alias)
    wait_until(lambda: Ledger.objects.filter(entry__in=ALIASES).count() == 2, "both run")


def end_held_jobs() -> None:
    Ledger.objects.create(entry="go")


def count_jobs(alias: str, status: str) -> int:
    return Job.objects.using(alias).filter(status=status).count()


def wait_for_completed(alias: str, number: int = 1) -> None:
    wait_until(lambda: count_jobs(alias, "completed") == number, f"{number} jobs of {alias} are completed")


def only_worker(alias: str) -> Worker:
    """The row of the only worker of this database, once there is one."""
    wait_until(lambda: Worker.objects.using(alias).exists(), f"{alias} has a worker")
    return Worker.objects.using(alias).get()


def supervisor_pids(process: ManagePy) -> dict[str, int]:
    """The process ids of both supervisors, by alias, once they run a worker each."""
    pids = {alias: only_worker(alias).pid for alias in ALIASES}
    return {alias: psutil.Process(pid).ppid() for alias, pid in pids.items()}


# With real processes


def test_jobs_of_both_databases_run_in_workers_named_after_the_database(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
        wait_for_completed(alias)
        assert only_worker(alias).name == f"w@{alias}/1"
    assert process.log.count("w serves every queue that has jobs") == 1
    assert process.log.count("on each of the databases 'default', 'other'") == 1
    assert sorted(supervisor_pids(process).values()) == sorted(children(process.process.pid))


def test_a_drain_ends_when_both_databases_are_empty(steward: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer_many([()] * 50)
    assert (process := steward("--drain")).wait() == 0
    assert [count_jobs(alias, "completed") for alias in ALIASES] == [50, 50]
    assert "died" not in process.log


def test_runworker_can_serve_one_of_several_databases(steward: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    process = steward("--drain", "--database", "other")
    assert process.wait() == 0
    assert (count_jobs("default", "queued"), count_jobs("other", "completed")) == (1, 1)
    assert "on database 'other'" in process.log
    assert "worker=w/1" in process.log


def test_runworker_can_serve_several_databases_without_the_setting(runworker: Run) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    assert runworker("--drain", environment={"SKIPQUEUE_DATABASE": " other, default,other"}).wait() == 0
    assert [count_jobs(alias, "completed") for alias in ALIASES] == [1, 1]


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ("", ("--database", "default,nosuch"), "no alias 'nosuch'"),
        ("", ("--database", ","), "names no database"),
        ('DATABASES["other"] = {**DATABASES["other"], "NAME": "postgres"}', (), "manage.py migrate django_skipqueue"),
    ],
    ids=["unknown alias", "none", "unmigrated"],
)
def test_an_error_of_one_database_is_reported_before_a_process_starts(
    steward: Run, settings: str, arguments: tuple[str, ...], expected: str
) -> None:
    process = steward(*arguments, settings=settings)
    assert process.wait() == 1
    assert expected in process.log
    assert "serves every queue" not in process.log
    assert "Traceback" not in process.log


# Signals


@pytest.mark.parametrize("to_the_whole_group", [False, True], ids=["steward", "all"])
@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_running_jobs_finish(
    steward: Run, to_the_whole_group: bool, stop_signal: signal.Signals
) -> None:
    process = steward("--poll-interval", HOUR)
    hold_a_job_in_each_database()
    (process.send_to_group if to_the_whole_group else process.send)(stop_signal)
    process.wait_for(f"supervisor stopping signal={stop_signal.name}")
    assert process.process.poll() is None, "the steward waits for the running jobs"
    end_held_jobs()
    assert process.wait() == 0
    assert [count_jobs(alias, "completed") for alias in ALIASES] == [1, 1]
    assert not any(Worker.objects.using(alias).exists() for alias in ALIASES)
    assert process.log.count("supervisor stopping") == 1
    assert "stopping now" not in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("to_the_whole_group", [False, True], ids=["steward", "all"])
def test_the_second_signal_releases_running_jobs(steward: Run, to_the_whole_group: bool) -> None:
    process = steward("--poll-interval", HOUR, "--shutdown-timeout", HOUR)
    hold_a_job_in_each_database()
    send = process.send_to_group if to_the_whole_group else process.send
    send(signal.SIGINT)
    process.wait_for("supervisor stopping")
    send(signal.SIGINT)
    assert process.wait() == 0
    for alias in ALIASES:
        assert list(Job.objects.using(alias).values_list("status", "attempts")) == [("queued", 0)]


def test_a_signal_to_a_supervisor_alone_is_ignored(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    pids = supervisor_pids(process)
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        os.kill(pids["other"], stop_signal)
    jobs.noop.using(database="other").defer()
    wait_for_completed("other")
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert "supervisor died" not in process.log
    assert process.log.count("supervisor stopping") == 1, "only the steward has logged that it stops"


# Deaths


def test_a_killed_supervisor_is_replaced_while_the_other_database_goes_on(steward: Run) -> None:
    process = steward("--poll-interval", HOUR, "--worker-timeout", "2", "--shutdown-timeout", "0.1")
    hold_a_job_in_each_database()
    pids = supervisor_pids(process)
    worker_id_before = only_worker("default").id
    psutil.Process(only_worker("other").pid).kill()
    os.kill(pids["other"], signal.SIGKILL)
    process.wait_for('supervisor died supervisor=w@other cause="signal 9 (SIGKILL)" restart_in=0s')
    end_held_jobs()
    wait_for_completed("other")
    wait_for_completed("default")
    assert Job.objects.using("other").get().attempts == 2
    assert Job.objects.using("default").get().attempts == 1
    assert only_worker("default").id == worker_id_before
    process.send(signal.SIGTERM)
    assert process.wait() == 0


def test_a_supervisor_killed_while_stopping_sets_the_exit_code(steward: Run) -> None:
    process = steward("--poll-interval", HOUR, "--shutdown-timeout", HOUR)
    hold_a_job_in_each_database()
    pids = supervisor_pids(process)
    process.send(signal.SIGTERM)
    process.wait_for("supervisor stopping")
    os.kill(pids["other"], signal.SIGKILL)
    process.wait_for('supervisor died supervisor=w@other cause="signal 9 (SIGKILL)"')
    end_held_jobs()
    assert process.wait() == 128 + signal.SIGKILL
    assert "restart_in" not in process.log


def test_when_the_steward_is_killed_its_processes_end_after_their_jobs(steward: Run) -> None:
    process = steward("--poll-interval", HOUR)
    hold_a_job_in_each_database()
    processes = psutil.Process(process.process.pid).children(recursive=True)
    process.send(signal.SIGKILL)
    for alias in ALIASES:
        process.wait_for(f"steward gone database={alias} supervisor=w@{alias} stopping_within=30s")
    end_held_jobs()
    for alias in ALIASES:
        wait_for_completed(alias)
    wait_until(lambda: not any(child.is_running() for child in processes), "all have ended")
    assert not any(Worker.objects.using(alias).exists() for alias in ALIASES)


# One database in trouble


def heartbeat_time(alias: str) -> datetime:
    return Worker.objects.using(alias).get().heartbeat_at


def test_a_stalled_database_delays_no_job_and_no_heartbeat_of_another_database(steward: Run, proxy: Proxy) -> None:
    process = steward(settings=behind(other=proxy), skipqueue={"HEARTBEAT_INTERVAL": 0.2})
    supervisor_pids(process)
    proxy.stall()
    beat = heartbeat_time("default")
    for number in range(1, 4):
        jobs.noop.defer()
        wait_until(lambda number=number: count_jobs("default", "completed") == number, "the job runs", deadline=5)  # type: ignore[misc]
        wait_until(lambda beat=beat: heartbeat_time("default") > beat, "the heartbeats go on", deadline=5)  # type: ignore[misc]
        beat = heartbeat_time("default")
    jobs.noop.using(database="other").defer()
    assert count_jobs("other", "completed") == 0
    proxy.flow()
    wait_for_completed("other")


@pytest.mark.parametrize("fault", ["refuse", "stall"])
def test_a_database_that_is_unreachable_at_the_start_is_served_when_it_is_back(
    steward: Run, proxy: Proxy, fault: str
) -> None:
    for alias in ALIASES:
        jobs.noop.using(database=alias).defer()
    getattr(proxy, fault)()
    process = steward("-q", "default", settings=behind(other=proxy))
    process.wait_for('database unreachable database=other hint="it is served once it can be reached"')
    wait_for_completed("default")
    assert connections["other"].settings_dict["PORT"] != proxy.port
    proxy.refuse(False)
    proxy.flow()
    wait_for_completed("other")
    process.send(signal.SIGTERM)
    assert process.wait() == 0

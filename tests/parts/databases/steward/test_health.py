"""`runworker --health-port` for two databases: one port shows both databases, also while one is down."""

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from django_skipqueue.parts.databases.steward import SupervisorProcess
from django_skipqueue.supervisor.health import HealthPages, Page
from django_skipqueue.supervisor.state import (
    LOOP_LATE_AFTER,
    DatabaseState,
    SharedState,
    SupervisorState,
    WorkerProcessState,
)
from django_skipqueue.worker.options import WorkerOptions

from ....app import jobs
from ....app.models import Ledger
from ....app.waiting import wait_until
from ....harness.processes import ManagePy, children
from ....harness.proxy import Proxy
from ....supervisor.test_health import NOTES_THREADS, free_port, get, has_status
from .conftest import ALIASES, Run, behind
from .test_steward import end_held_jobs, supervisor_pids, wait_for_completed

two_databases = pytest.mark.django_db(transaction=True, databases=ALIASES)

ALL_READY = (200, "ok\n")


def metrics(port: int) -> dict[str, float]:
    """The values of the metrics on the port, by name and labels without the common prefix."""
    lines = [line for line in get(port, "/metrics")[1].splitlines() if not line.startswith("#")]
    series_and_values = (line.rpartition(" ") for line in lines)
    return {series.removeprefix("skipqueue_worker_"): float(value) for series, _, value in series_and_values}


def wait_until_all_ready(port: int) -> None:
    wait_until(lambda: has_status(port, "/readyz", 200) and get(port, "/readyz") == ALL_READY, "both are ready")


# With real processes


@two_databases
def test_one_port_shows_both_databases(steward: Run) -> None:
    port = free_port()
    process = steward("--processes", "2", "--health-port", str(port))
    wait_until_all_ready(port)
    assert get(port, "/healthz") == (200, "ok\n")
    jobs.noop.using(database="other").defer_many([()] * 10)
    wait_for_completed("other", 10)
    counters = [f'jobs_done_total{{database="other",worker="w@other/{number}"}}' for number in (1, 2)]
    wait_until(lambda: sum(metrics(port)[counter] for counter in counters) == 10, "counted")
    values = metrics(port)
    for alias in ALIASES:
        assert values[f'database_up{{database="{alias}"}}'] == 1
        assert values[f'loop_age_seconds{{database="{alias}"}}'] < LOOP_LATE_AFTER
        for number in (1, 2):
            labels = f'{{database="{alias}",worker="w@{alias}/{number}"}}'
            assert (values[f"up{labels}"], values[f"slots{labels}"], values[f"restarts_total{labels}"]) == (1, 4, 0)
            assert values[f"memory_bytes{labels}"] > 10_000_000
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthz")


@two_databases
def test_the_port_names_a_database_that_is_down_and_fails_only_if_both_are_down(
    steward: Run, proxies: dict[str, Proxy]
) -> None:
    port = free_port()
    steward("--health-port", str(port), settings=behind(**proxies))
    wait_until_all_ready(port)
    for alias, status, body in (
        ("other", 200, "ok\nother: the database cannot be reached\n"),
        ("default", 503, "default: the database cannot be reached\nother: the database cannot be reached\n"),
    ):
        proxies[alias].refuse()
        proxies[alias].cut()
        wait_until(lambda expected=(status, body): get(port, "/readyz") == expected, body)  # type: ignore[misc]
        assert metrics(port)[f'database_up{{database="{alias}"}}'] == 0
        assert get(port, "/healthz") == (200, "ok\n"), "a restart would not help"
    for proxy in proxies.values():
        proxy.refuse(False)
    wait_until_all_ready(port)


@two_databases
def test_a_database_that_is_down_from_the_start_does_not_make_the_port_unready(steward: Run, proxy: Proxy) -> None:
    proxy.refuse()
    port = free_port()
    steward("--health-port", str(port), settings=behind(other=proxy))
    expected = (200, "ok\nother: the database cannot be reached\n")
    wait_until(
        lambda: has_status(port, "/readyz", 200) and get(port, "/readyz") == expected,
        "the port is ready for the first database",
    )


@two_databases
def test_a_supervisor_that_hangs_is_unhealthy(steward: Run) -> None:
    port = free_port()
    late_after_five_seconds = "from django_skipqueue.supervisor import state\nstate.LATE_AFTER = 5.0"
    process = steward("--health-port", str(port), settings=late_after_five_seconds)
    wait_until_all_ready(port)
    hanging_pid = supervisor_pids(process)["other"]
    os.kill(hanging_pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: "other: the supervisor's control loop has not turned for" in get(port, "/healthz")[1],
            "the hanging supervisor is noticed",
        )
        assert get(port, "/healthz")[0] == 503
    finally:
        os.kill(hanging_pid, signal.SIGCONT)
    wait_until(lambda: has_status(port, "/healthz", 200), "the supervisor is healthy again")


@two_databases
def test_a_supervisor_that_has_drained_its_database_is_not_shown_any_more(steward: Run) -> None:
    jobs.record_and_hold.using(database="other").defer("other")
    port = free_port()
    process = steward("--drain", "--health-port", str(port))
    wait_until(lambda: Ledger.objects.filter(entry="other").exists(), "the job runs")
    wait_until(
        lambda: not any('database="default"' in series for series in metrics(port)),
        "the supervisor of the empty database has ended",
    )
    wait_until_all_ready(port)
    assert get(port, "/healthz") == (200, "ok\n")
    end_held_jobs()
    assert process.wait() == 0


def open_sockets(pid: int) -> set[str]:
    """The sockets that a process has open."""
    files = Path(f"/proc/{pid}/fd")
    links = []
    for file in files.iterdir():
        try:
            links.append(str(file.readlink()))
        except FileNotFoundError:  # closed since the folder was listed
            continue
    return {link for link in links if link.startswith("socket:")}


def listening_socket(port: int) -> str:
    """The socket that listens on this port."""
    # the row of a listening socket (state 0A) has the inode of the socket near its end
    match = re.search(rf":{port:04X} 00000000:0000 0A .*? .*? .*? +\d+ +\d+ (\d+) ", Path("/proc/net/tcp").read_text())
    assert match
    return f"socket:[{match[1]}]"


def assert_no_socket_is_inherited(process: ManagePy, port: int) -> None:
    steward_sockets = open_sockets(process.process.pid)
    assert listening_socket(port) in steward_sockets
    for child in psutil.Process(process.process.pid).children(recursive=True):
        assert not steward_sockets & open_sockets(child.pid), f"{child} has none of the steward's sockets"


@two_databases
def test_no_process_inherits_the_port_and_it_stays_open_when_a_supervisor_is_replaced(steward: Run) -> None:
    port = free_port()
    process = steward("--health-port", str(port), settings=NOTES_THREADS)
    wait_until_all_ready(port)
    pids = supervisor_pids(process)
    assert_no_socket_is_inherited(process, port)
    os.kill(pids["other"], signal.SIGKILL)
    process.wait_for("supervisor died supervisor=w@other")
    pid = process.process.pid
    wait_until(
        lambda: pids["other"] not in children(pid) and len(children(pid)) == 2, "the killed supervisor is replaced"
    )
    wait_until_all_ready(port)
    assert get(port, "/healthz") == (200, "ok\n")
    assert_no_socket_is_inherited(process, port)
    threads = (process.folder / "threads").read_text().splitlines()
    assert threads == ["MainThread"] * 6, "three supervisors and three workers were forked, by no other thread"


# The state that a supervisor shares with the steward


OPTIONS = WorkerOptions(name="w@other", database="other", processes=2)

BUSY_WORKER = WorkerProcessState(
    "w@other/1", pid=4711, has_started=True, is_frozen=True, starts=3, jobs_done=10**12, jobs_running=2, slots=4,
    slots_free=1, heartbeat_at=1234.5,
)  # fmt: skip
IDLE_WORKER = WorkerProcessState("w@other/2", slots=4)
STATE = SupervisorState("other", 0.0, 0.0, DatabaseState.REACHED, (BUSY_WORKER, IDLE_WORKER))


def test_another_process_reads_the_state_that_a_supervisor_has_written() -> None:
    shared_state = SharedState(OPTIONS)
    assert shared_state.read().database is DatabaseState.UNKNOWN
    writer = multiprocessing.get_context("fork").Process(target=shared_state.write, args=(STATE,))
    writer.start()
    writer.join()
    state = shared_state.read()
    assert state == STATE._replace(turned_at=shared_state.pulse.turned_at, late_at=shared_state.pulse.late_at)


def test_the_workers_of_a_supervisor_that_has_ended_do_not_count_as_running() -> None:
    process = SupervisorProcess("w@other", OPTIONS)
    process.shared.write(STATE)
    process.pid = os.getpid()
    assert process.state.workers == STATE.workers
    process.pid = 0
    first_worker = process.state.workers[0]
    assert (first_worker.has_started, first_worker.pid, first_worker.jobs_done) == (False, 0, BUSY_WORKER.jobs_done)
    assert HealthPages(lambda: [process.state], names_databases=True).page("/readyz") == Page(
        "503 Service Unavailable", "other: no worker process runs\n"
    )


def test_a_supervisor_that_has_not_started_for_long_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SupervisorProcess("w@other", OPTIONS)
    health = HealthPages(lambda: [process.state], names_databases=True)
    assert health.page("/healthz") == Page("200 OK", "ok\n")
    late = time.monotonic() + LOOP_LATE_AFTER + 1
    monkeypatch.setattr(time, "monotonic", lambda: late)
    page = health.page("/healthz")
    assert page is not None
    assert page.status == "503 Service Unavailable"

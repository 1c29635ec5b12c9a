"""systemd and a steward: a real `runworker` for two databases notifies as one service."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_skipqueue.models import Worker
from django_skipqueue.supervisor.state import DatabaseState, SupervisorState, WorkerProcessState
from django_skipqueue.supervisor.systemd import NotifySystemd

from ....app import jobs
from ....app.waiting import wait_until
from ....harness.proxy import Proxy
from ....harness.systemd import Manager
from .conftest import ALIASES, Run, behind
from .test_steward import supervisor_pids, wait_for_completed

two_databases = pytest.mark.django_db(transaction=True, databases=ALIASES)

RUNNING_WORKER = (WorkerProcessState("w/1", pid=1, has_started=True),)
STARTING_WORKER = (WorkerProcessState("w/1", pid=1),)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


# With real processes


@two_databases
def test_a_steward_is_ready_once_both_supervisors_are_alive_and_stops_as_one_service(
    steward: Run, manager: Manager
) -> None:
    late_after_five_seconds = "from django_skipqueue.supervisor import state\nstate.LATE_AFTER = 5.0"
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"}
    process = steward(environment=environment, settings=late_after_five_seconds)
    assert manager.receive() == ["READY=1"]
    assert all(Worker.objects.using(alias).exists() for alias in ALIASES), "each worker has written its row"
    assert manager.receive()[0] == "WATCHDOG=1"
    jobs.noop.using(database="other").defer_many([()] * 3)
    wait_for_completed("other", 3)
    manager.wait_for("STATUS=2 of 2 workers, 0 jobs running, 3 attempts done")
    hanging_pid = supervisor_pids(process)["other"]
    os.kill(hanging_pid, signal.SIGSTOP)
    wait_until(lambda: manager.receive()[0].startswith("STATUS="), "no watchdog message any more")
    os.kill(hanging_pid, signal.SIGCONT)
    manager.wait_for("WATCHDOG=1")
    process.send(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    assert process.wait() == 0


@two_databases
def test_a_database_that_is_down_does_not_keep_the_service_from_starting(
    steward: Run, manager: Manager, proxy: Proxy
) -> None:
    proxy.refuse()
    process = steward(environment={"NOTIFY_SOCKET": manager.address}, settings=behind(other=proxy))
    assert manager.receive() == ["READY=1"]
    manager.wait_for("STATUS=2 of 2 workers, 0 jobs running, 0 attempts done; cannot be reached: other")
    assert "worker started database=default worker=w@default/1" in process.log


# When the service is ready, and when it is alive


def make_state(database: DatabaseState, *workers: WorkerProcessState, late_at: float = float("inf")) -> SupervisorState:
    return SupervisorState(database.name, time.monotonic(), late_at, database, workers)


UNKNOWN, REACHED, LOST = DatabaseState


@pytest.mark.parametrize(
    ("states", "is_ready"),
    [
        ([make_state(REACHED, *RUNNING_WORKER), make_state(REACHED, *STARTING_WORKER, *RUNNING_WORKER)], True),
        ([make_state(REACHED, *RUNNING_WORKER), make_state(LOST, *STARTING_WORKER)], True),
        ([make_state(REACHED, *RUNNING_WORKER), make_state(UNKNOWN, *STARTING_WORKER)], False),
        ([make_state(REACHED, *RUNNING_WORKER), make_state(REACHED, *STARTING_WORKER)], False),
        ([make_state(LOST, *STARTING_WORKER), make_state(LOST, *STARTING_WORKER)], False),
        ([make_state(LOST, *STARTING_WORKER)], False),
        ([make_state(REACHED, *RUNNING_WORKER)], True),
    ],
    ids=["both run", "one is down", "one is not tried yet", "one starts", "all down", "the only one is down", "one"],
)
def test_the_service_is_ready_once_all_reachable_databases_have_a_worker(
    manager: Manager, states: list[SupervisorState], is_ready: bool
) -> None:
    service = NotifySystemd(lambda: states, {"NOTIFY_SOCKET": manager.address})
    service.run(time.monotonic())
    if is_ready:
        assert manager.receive() == ["READY=1"]
        assert manager.receive()[0] == "WATCHDOG=1"
        service.run(time.monotonic())
        assert manager.receive()[0] == "WATCHDOG=1", "READY is sent once"
    else:
        assert manager.is_silent_for(0.1)


def test_a_supervisor_that_hangs_stops_the_watchdog_messages(manager: Manager) -> None:
    states = [make_state(REACHED, *RUNNING_WORKER), make_state(LOST, *RUNNING_WORKER, late_at=0.0)]
    service = NotifySystemd(lambda: states, {"NOTIFY_SOCKET": manager.address})
    service.run(time.monotonic())
    assert manager.receive() == ["READY=1"]
    assert manager.receive() == ["STATUS=2 of 2 workers, 0 jobs running, 0 attempts done; cannot be reached: LOST"]

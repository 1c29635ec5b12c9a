"""systemd: what a real `runworker` sends to the service manager through the socket `NOTIFY_SOCKET`."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_skipqueue.models import Job, Worker
from django_skipqueue.supervisor.systemd import NotifySystemd
from django_skipqueue.values.records import NEVER

from ..app import jobs
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses
from ..harness.systemd import Manager

RunWorker = Callable[..., ManagePy]

LIST_ENVIRONMENT = """
    import os
    from django_skipqueue import job

    @job(max_attempts=1)
    def environment():
        return sorted(name for name in os.environ if name.startswith(("NOTIFY_", "WATCHDOG_")))
"""


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify") if request.param == "path" else f"@skipqueue-{secrets.token_hex(8)}"
    fake_manager = Manager(path)
    yield fake_manager
    fake_manager.close()


@pytest.mark.django_db(transaction=True)
def test_systemd_is_notified_of_a_ready_worker_of_each_watchdog_turn_and_of_the_stop(
    runworker: RunWorker, manager: Manager
) -> None:
    process = runworker("--processes", "2", environment={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"})
    assert manager.receive() == ["READY=1"]
    assert Worker.objects.exists(), "`runworker` is ready only after the first worker has written its row"
    lines = manager.receive()
    assert lines[0] == "WATCHDOG=1"
    assert lines[1].startswith("STATUS=")
    assert lines[1].endswith(" of 2 workers, 0 jobs running, 0 attempts done")
    jobs.noop.defer_many([()] * 3)
    wait_for_statuses(completed=3)
    manager.wait_for("STATUS=2 of 2 workers, 0 jobs running, 3 attempts done")
    process.send(signal.SIGSTOP)
    # A loop that turns sends a message every half second.
    wait_until(lambda: manager.is_silent_for(1.5), "the loop does not turn")
    process.send(signal.SIGCONT)
    manager.wait_for("WATCHDOG=1")
    process.send(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    assert process.wait() == 0


@pytest.mark.django_db(transaction=True)
def test_tasks_do_not_inherit_the_environment_variables_of_systemd(runworker: RunWorker, manager: Manager) -> None:
    Job.objects.enqueue("extra.jobs.environment")
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000"}
    assert runworker("--drain", jobs=LIST_ENVIRONMENT, environment=environment).wait() == 0
    assert Job.objects.get().result == []


def test_the_service_is_never_due_without_a_notify_socket() -> None:
    assert NotifySystemd(list, {}).due_at == NEVER


def test_the_watchdog_of_another_process_and_a_wrong_time_are_ignored(manager: Manager) -> None:
    for variables in ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}):
        environment = {"NOTIFY_SOCKET": manager.address, **variables}
        assert NotifySystemd(list, environment).seconds_of_watchdog == NEVER
        assert environment == {}
    own_environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}
    assert NotifySystemd(list, own_environment).seconds_of_watchdog == 2.0


def test_nothing_is_sent_after_forget_and_a_missing_socket_is_ignored(manager: Manager) -> None:
    service = NotifySystemd(list, {"NOTIFY_SOCKET": manager.address})
    service.stopping()
    assert manager.receive()[0] == "STOPPING=1"
    service.forget()
    service.stopping()
    assert manager.is_silent_for(0.1)
    service_without_socket = NotifySystemd(list, {"NOTIFY_SOCKET": "/nowhere/notify"})
    service_without_socket.stopping()

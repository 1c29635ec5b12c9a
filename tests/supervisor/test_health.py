"""`runworker --health-port` serves HTTP pages, also during failures and to hostile clients."""

import contextlib
import errno
import http.client
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_skipqueue.management.commands.runworker import Command
from django_skipqueue.supervisor import health as health_port
from django_skipqueue.supervisor import health as http_exchange
from django_skipqueue.supervisor.health import LARGEST_REQUEST, HealthPages, HealthPort, Page, open_port
from django_skipqueue.supervisor.liveness import FROZEN_AFTER, STACKS_TIME, Watchdog
from django_skipqueue.supervisor.processes import WorkerProcess
from django_skipqueue.supervisor.state import LOOP_LATE_AFTER, DatabaseState, Pulse, observe
from django_skipqueue.worker.protocol import SharedCounts, Stamps

from ..app import jobs
from ..app.waiting import wait_until
from ..harness.processes import ManagePy, wait_for_statuses, workers
from .test_supervisor import outage

RunWorker = Callable[..., ManagePy]

db = pytest.mark.django_db(transaction=True)


OBSERVE = Path(__file__).parents[2] / "docs/how-to/observe.md"


def free_port() -> int:
    """A port on which nobody listens, below the ports that the system gives to connections."""
    while True:
        port = random.randint(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def has_status(port: int, path: str, status: int) -> bool:
    with contextlib.suppress(ConnectionError):
        return get(port, path)[0] == status
    return False


def metrics(port: int) -> dict[str, float]:
    """The value of each metric. In the labels, the worker's number stands in place of its name."""
    status, text = get(port, "/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    metric_values = {}
    for line in lines:
        series, _, value = line.rpartition(" ")
        metric_values[re.sub(r'worker=".*/(\d+)"', r"\1", series).removeprefix("skipqueue_worker_")] = float(value)
    return metric_values


# A real worker

NOTES_THREADS = """
    import os, threading

    def note():
        with open("threads", "a") as file:
            print(*[thread.name for thread in threading.enumerate()], file=file)

    os.register_at_fork(before=note)
"""


@db
def test_the_health_pages_and_metrics_of_two_working_processes(runworker: RunWorker) -> None:
    port = free_port()
    runworker("--processes", "2", "-c", "3", "--health-port", str(port))
    wait_until(lambda: has_status(port, "/readyz", 200), "ready")
    assert get(port, "/healthz") == (200, "ok\n")
    jobs.noop.defer_many([()] * 10)
    wait_for_statuses(completed=10)
    wait_until(lambda: sum(metrics(port)[f"jobs_done_total{{{number}}}"] for number in (1, 2)) == 10, "counted")
    wait_until(lambda: metrics(port).get("slots_free{2}") == 3, "idle")
    metric_values = metrics(port)
    assert (
        metric_values["up{1}"],
        metric_values["slots{1}"],
        metric_values["jobs_running{1}"],
        metric_values["restarts_total{1}"],
    ) == (1, 3, 0, 0)
    assert metric_values["memory_bytes{1}"] > 10_000_000
    assert 0 <= metric_values["heartbeat_age_seconds{2}"] < 60
    assert (metric_values["database_up"], metric_values["loop_age_seconds"] < 30) == (1, True)


@db
def test_the_health_port_stays_open_while_a_killed_worker_is_replaced(runworker: RunWorker) -> None:
    port = free_port()
    process = runworker("--health-port", str(port), settings=NOTES_THREADS)
    wait_until(lambda: has_status(port, "/readyz", 200), "ready")
    (worker,) = workers()
    open_files = [str(file.readlink()) for file in Path(f"/proc/{worker.pid}/fd").iterdir()]
    sockets = Path("/proc/net/tcp").read_text()
    listening_socket = re.search(rf":{port:04X} 00000000:0000 0A .*? .*? .*? +\d+ +\d+ (\d+) ", sockets)
    assert listening_socket
    assert f"socket:[{listening_socket[1]}]" not in open_files, "the worker process has closed the port"
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: metrics(port)["restarts_total{1}"] == 1, "restarted")
    wait_until(lambda: has_status(port, "/readyz", 200), "ready again")
    assert (process.folder / "threads").read_text().split() == ["MainThread"] * 2, "no other thread runs during a fork"
    process.send(signal.SIGTERM)
    assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthz")


@db
def test_a_supervisor_without_a_database_is_healthy_but_not_ready(runworker: RunWorker) -> None:
    port = free_port()
    runworker("--health-port", str(port))
    wait_until(lambda: has_status(port, "/readyz", 200), "ready")
    with outage():
        wait_until(lambda: has_status(port, "/readyz", 503), "not ready")
        assert get(port, "/readyz") == (503, "the database cannot be reached\n")
        assert get(port, "/healthz") == (200, "ok\n")
        assert metrics(port)["database_up"] == 0
    wait_until(lambda: has_status(port, "/readyz", 200), "ready again")


@db
def test_runworker_exits_if_the_health_port_is_taken(runworker: RunWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_listener:
        process = runworker("--health-port", str(other_listener.getsockname()[1]))
        assert process.wait() == 1
    assert "--health-port: cannot listen on 127.0.0.1, port " in process.log


def test_the_health_port_listens_on_localhost_unless_a_host_is_given() -> None:
    options = vars(Command().create_parser("manage.py", "runworker").parse_args([]))
    assert (options["health_host"], options["health_port"]) == ("127.0.0.1", None)


# What makes a supervisor unhealthy


class FakeProcess(WorkerProcess):
    """A worker process that is not started, and ignores signals."""

    def __init__(self) -> None:
        super().__init__("w/1", 1)
        self.id, self.pid, self.stamps, self.shared = "w/1:0123456789ab", 1, Stamps(), SharedCounts()

    def signal(self, number: signal.Signals) -> None:
        pass


def health_of(*processes: WorkerProcess, pulse: Pulse | None = None, watchdog: Watchdog | None = None) -> HealthPages:
    """The pages of a supervisor whose database answers."""
    pulse, watchdog, database = pulse or Pulse(), watchdog or Watchdog([]), DatabaseState.REACHED
    return HealthPages(lambda: [observe("default", processes, pulse=pulse, watchdog=watchdog, database=database)])


def test_a_supervisor_is_unhealthy_once_its_loop_has_hung_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pulse = Pulse()
    health = health_of(pulse=pulse)
    now += LOOP_LATE_AFTER
    assert health.page("/healthz") == Page("200 OK", "ok\n")
    now += 1
    problem = health.page("/healthz")
    assert problem == Page("503 Service Unavailable", "the supervisor's control loop has not turned for 31 s\n")
    pulse.turn(within=120)  # the loop sends a statement that may take two minutes
    now += 119
    assert health.page("/healthz") == Page("200 OK", "ok\n")
    now += 2
    assert health.page("/healthz") != Page("200 OK", "ok\n")


def test_a_supervisor_with_a_frozen_worker_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    process = FakeProcess()
    process.stamps.put(jobs_done=0, within=5)
    watchdog = Watchdog([process])
    pulse = Pulse()
    health = health_of(process, pulse=pulse, watchdog=watchdog)
    for _ in range(int(FROZEN_AFTER) - 2):
        watchdog.run(now)
        now += 1
    assert health.page("/healthz") == Page("200 OK", "ok\n"), "the worker is silent, and does not count as frozen yet"
    for _ in range(4):
        watchdog.run(now)
        now += STACKS_TIME
    pulse.turn()
    assert health.page("/healthz") == Page("503 Service Unavailable", "frozen, and being replaced: w/1\n")


def test_a_supervisor_without_a_worker_process_is_not_ready() -> None:
    health = health_of(WorkerProcess("w/1", 1))
    assert health.page("/readyz") == Page("503 Service Unavailable", "no worker process runs\n")
    page = health.page("/metrics")
    assert page is not None
    assert 'skipqueue_worker_up{worker="w/1"} 0\n' in page.body
    assert "memory_bytes{" not in page.body


def test_a_worker_name_with_quotes_and_newlines_cannot_forge_a_metric() -> None:
    process = WorkerProcess('a"} 1\nforged{x="\\', 1)
    page = health_of(process).page("/metrics")
    assert page is not None
    assert '\nskipqueue_worker_up{worker="a\\"} 1\\nforged{x=\\"\\\\"} 0\n' in page.body


# HTTP clients of the health port


BODY = "x" * 1_000_000


@pytest.fixture
def port() -> Iterator[int]:
    def answer(path: str) -> Page | None:
        if path == "/broken":
            raise ValueError("secret")
        return {"/ok": Page("200 OK", "ok\n"), "/large": Page("200 OK", BODY)}.get(path)

    listener = open_port("127.0.0.1", 0)
    server = HealthPort(listener, answer)
    server.start()
    yield listener.getsockname()[1]
    server.stop()
    server.close()


def test_the_port_answers_get_and_head_and_ignores_a_query(port: int) -> None:
    assert get(port, "/ok") == (200, "ok\n")
    assert get(port, "/ok?verbose=1") == (200, "ok\n")
    assert get(port, "/ok", "HEAD") == (200, "")
    assert get(port, "/large") == (200, BODY), "the body is larger than a socket takes at once"


def send_and_receive(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request)
        received = b""
        while chunk := client.recv(65536):
            received += chunk
        return received


@pytest.mark.parametrize(
    ("sent_request", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /broken HTTP/1.1\r\n\r\n", "500 Internal Server Error"),
        (b"POST /ok HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        (b"GET /ok HTTP/1.0\n\n", "200 OK"),
        (b"GET /ok\r\n\r\n", "400 Bad Request"),
        (b"GET http://other/ok HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01\xff\xfe\r\n\r\n", "400 Bad Request"),
        (b"GET /ok HTTP/1.1\r\nX: " + b"x" * 3 * LARGEST_REQUEST, "431 Request Header Fields Too Large"),
    ],
)
def test_wrong_requests_get_an_answer_with_the_right_status(port: int, sent_request: bytes, status: str) -> None:
    received = send_and_receive(port, sent_request)
    assert received.startswith(f"HTTP/1.1 {status}\r\n".encode())
    assert b"Connection: close\r\n" in received
    assert b"secret" not in received


def test_a_slow_client_is_disconnected_and_does_not_delay_other_clients(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "HTTP_EXCHANGE_SECONDS", 3.0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as slow_client:
        slow_client.sendall(b"GET /ok HT")
        assert get(port, "/ok") == (200, "ok\n")
        assert slow_client.recv(1) == b"", "the client is disconnected, because its time is over"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client_that_does_not_read:
        client_that_does_not_read.sendall(b"GET /large HTTP/1.1\r\n\r\n")  # and does not read
        wait_until(lambda: get(port, "/ok") == (200, "ok\n"), "answered")


def test_many_idle_clients_do_not_keep_another_client_out(port: int) -> None:
    with contextlib.ExitStack() as stack:
        first_client, *_ = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), http_exchange.HTTP_EXCHANGE_SECONDS / 2))
            for _ in range(2 * health_port.MOST_HTTP_EXCHANGES)
        ]
        assert get(port, "/ok") == (200, "ok\n")
        assert first_client.recv(1) == b"", "it was disconnected in favour of later clients"


def test_a_client_waits_while_the_thread_is_stopped_for_a_fork() -> None:
    listener = open_port("127.0.0.1", 0)
    server = HealthPort(listener, lambda path: Page("200 OK", path))
    server.start()
    server.stop()
    with socket.create_connection(listener.getsockname(), timeout=30) as client:
        client.sendall(b"GET /ok HTTP/1.1\r\n\r\n")
        server.start()
        server.start()  # it runs already
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
    server.stop()
    server.close()


def test_clients_that_disconnect_early_do_no_harm(port: int) -> None:
    for request in (b"", b"GET /ok HTTP/1.1\r\n\r\n", b"GET /large HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed with a reset
            client.sendall(request)
    assert get(port, "/ok") == (200, "ok\n")


class SocketWithoutDescriptors(socket.socket):
    """A listener whose first `accept` fails because the process has no file descriptor left."""

    failures = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.failures += 1
        if self.failures < 3:
            raise OSError(errno.EMFILE, "Too many open files") if self.failures == 1 else BlockingIOError
        return super().accept()


def test_an_accept_that_fails_for_lack_of_file_descriptors_is_repeated() -> None:
    listener = SocketWithoutDescriptors(fileno=open_port("127.0.0.1", 0).detach())
    server = HealthPort(listener, lambda path: Page("200 OK", "ok\n"))
    server.start()
    assert get(listener.getsockname()[1], "/ok") == (200, "ok\n")
    server.stop()
    server.close()


def test_the_health_port_can_listen_on_an_ipv6_address() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with open_port("::1", 0) as listener:
        assert listener.family == socket.AF_INET6


def test_the_documentation_lists_every_metric_of_the_metrics_page() -> None:
    health = health_of(WorkerProcess("w/1", 1))
    page = health.page("/metrics")
    assert page is not None
    documented = re.findall(r"^\| `(skipqueue_worker_\w+)` \| (\w+) \|", OBSERVE.read_text(), re.MULTILINE)
    assert documented == re.findall(r"^# TYPE (\w+) (\w+)$", page.body, re.MULTILINE)

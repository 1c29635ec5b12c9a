"""The health port: an HTTP server for health probes and metrics, which answers even if the supervisor's loop hangs.

The pages show the state that supervisors and their workers keep in memory, without sending SQL statements. They are
served by a separate thread, while the control loop may change the state.

The thread ends before the supervisor forks a process. The port stays open, so that no probe is refused. A slow or
hostile client does not delay other clients or the control loop for long.

An `HttpExchange` is one request and its response, on a non-blocking socket. It answers GET and HEAD, and then closes.
Whatever a client sends, the exchange needs little memory, and is over at `end_at`.

The metrics have one series for each metric and worker. With several databases, each series has the label `database`.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..values.exposition import CONTENT_TYPE, Family, Metric, exposition
from ..values.part import installed_parts
from ..worker.watchers import resident_bytes
from .state import DatabaseState, SupervisorState, WorkerProcessState

METRIC_PREFIX = "skipqueue_worker_"
WORKER_LABELS = ("worker",)

Value = Callable[[WorkerProcessState], float | None]
"""A function that returns the value of a metric for a worker; `None` if the worker has no value."""


def _gauge(name: str, text: str) -> Metric:
    return Metric(f"{METRIC_PREFIX}{name}", "gauge", text, WORKER_LABELS)


def _if_started(value: Value) -> Value:
    """Return a function that gives the value, or `None` for a worker whose process does not run."""
    return lambda worker: value(worker) if worker.has_started else None


def _if_it_runs_jobs(value: Value) -> Value:
    """Return a function that gives the value, or `None` for a process without slots, which runs no jobs."""
    return lambda worker: value(worker) if worker.slots else None


METRICS: tuple[tuple[Metric, Value], ...] = (
    (_gauge("up", "Whether the worker process runs."), lambda worker: worker.has_started),
    (
        Metric(f"{METRIC_PREFIX}jobs_done_total", "counter", "Attempts that the worker has settled.", WORKER_LABELS),
        lambda worker: worker.jobs_done,
    ),
    (_gauge("jobs_running", "Jobs that run."), _if_it_runs_jobs(_if_started(lambda worker: worker.jobs_running))),
    (_gauge("slots", "Jobs of one kind that may run at once."), _if_it_runs_jobs(lambda worker: worker.slots)),
    (
        _gauge("slots_free", "Jobs that could begin at once."),
        _if_it_runs_jobs(_if_started(lambda worker: worker.slots_free)),
    ),
    (
        Metric(f"{METRIC_PREFIX}restarts_total", "counter", "Processes after the first one.", WORKER_LABELS),
        lambda worker: max(worker.starts - 1, 0),
    ),
    (
        _gauge("memory_bytes", "Resident size of the worker process."),
        _if_started(lambda worker: resident_bytes(worker.pid)),
    ),
    (
        _gauge("heartbeat_age_seconds", "Seconds since the supervisor wrote the worker's heartbeat."),
        _if_started(lambda worker: max(time.monotonic() - worker.heartbeat_at, 0.0)),
    ),
)
"""The metrics that have a series for each worker, each with its value."""

SUPERVISOR_REACHES_DATABASE = Metric(
    f"{METRIC_PREFIX}database_up", "gauge", "Whether the supervisor's last statement succeeded."
)
LOOP_AGE = Metric(f"{METRIC_PREFIX}loop_age_seconds", "gauge", "Seconds since the supervisor's control loop turned.")


def figures(states: Sequence[SupervisorState], *, names_databases: bool) -> Iterator[Family]:
    """The metrics of these supervisors. `names_databases`: whether to add the label `database`."""

    def family(metric: Metric, values: Sequence[tuple[SupervisorState, tuple[str, ...], float]]) -> Family:
        if not names_databases:
            return Family(metric, {labels: value for _, labels, value in values})
        with_database = metric._replace(labels=("database", *metric.labels))
        return Family(with_database, {(state.alias, *labels): value for state, labels, value in values})

    metrics_of_parts = (gauge for part in installed_parts() for gauge in part.gauges)
    for metric, value in (*METRICS, *metrics_of_parts):
        values = [(state, worker.name, value(worker)) for state in states for worker in state.workers]
        yield family(metric, [(state, (name,), float(number)) for state, name, number in values if number is not None])
    yield family(
        SUPERVISOR_REACHES_DATABASE, [(state, (), float(state.database is DatabaseState.REACHED)) for state in states]
    )
    now = time.monotonic()
    yield family(LOOP_AGE, [(state, (), max(now - state.turned_at, 0.0)) for state in states])


LARGEST_REQUEST = 8_192
"""The most bytes of a request line and its headers."""

HTTP_EXCHANGE_SECONDS = 5.0
"""How many seconds a client has to send its request, read the response, and close the connection."""


class Page(NamedTuple):
    status: str
    body: str
    kind: str = "text/plain; charset=utf-8"


Answer = Callable[[str], Page | None]
"""A function that returns the page at a path; `None` if there is no such page."""


class HttpExchange:
    """One HTTP request and its response, on a connected socket. `proceed` reads or writes without waiting."""

    def __init__(self, client: socket.socket, answer: Answer, now: float) -> None:
        client.setblocking(False)
        self.end_at = now + HTTP_EXCHANGE_SECONDS
        """When to close the connection, by the monotonic clock."""
        self._socket = client
        self._answer = answer
        self._received = b""
        self._response = b""
        self._is_answered = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits_for(self) -> int:
        """The event of the module `selectors` for which this exchange waits."""
        return selectors.EVENT_WRITE if self._response else selectors.EVENT_READ

    def proceed(self) -> bool:
        """Read or write without waiting. Returns whether the exchange is over."""
        try:
            return not self._write() if self._response else not self._read()
        except BlockingIOError:
            return False
        except OSError:  # the client is gone
            return True

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bool:
        """Read bytes. After the response, drop them, because closing a socket with unread bytes would reset it."""
        received = self._socket.recv(LARGEST_REQUEST)
        if received and not self._is_answered:
            self._received += received
            self._response = respond(self._received, self._answer)
            return self._write() if self._response else True
        return bool(received)

    def _write(self) -> bool:
        self._response = self._response[self._socket.send(self._response) :]
        if not self._response:
            self._is_answered = True
            self._socket.shutdown(socket.SHUT_WR)
        return True


def respond(received: bytes, answer: Answer) -> bytes:
    """The response to the request; empty until the whole request was received."""
    head, blank_line, _ = received.replace(b"\r\n", b"\n").partition(b"\n\n")
    if len(received) > LARGEST_REQUEST:
        return _response(Page("431 Request Header Fields Too Large", "The request is too large.\n"))
    if not blank_line:
        return b""
    request_line = head.partition(b"\n")[0].decode("latin-1").split(" ")
    if len(request_line) != 3 or not request_line[1].startswith("/") or request_line[2] not in ("HTTP/1.0", "HTTP/1.1"):
        return _response(Page("400 Bad Request", "This is not HTTP/1.1.\n"))
    method, target, _ = request_line
    if method not in ("GET", "HEAD"):
        return _response(Page("405 Method Not Allowed", "Use GET or HEAD.\n"), "Allow: GET, HEAD\r\n")
    return _response(_page(target.partition("?")[0], answer), with_body=method == "GET")


def _page(path: str, answer: Answer) -> Page:
    try:
        page = answer(path)
    except Exception as error:  # nobody would see the exception, and the probe needs an answer
        return Page("500 Internal Server Error", f"{type(error).__name__}\n")
    return page or Page("404 Not Found", "There are /healthz, /readyz and /metrics.\n")


def _response(page: Page, headers: str = "", *, with_body: bool = True) -> bytes:
    body = page.body.encode()
    head = (
        f"HTTP/1.1 {page.status}\r\nContent-Type: {page.kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nConnection: close\r\n{headers}\r\n"
    )
    return head.encode() + (body if with_body else b"")


class HealthPages:
    """The pages of one `runworker` command."""

    def __init__(self, states: Callable[[], Sequence[SupervisorState]], *, names_databases: bool = False) -> None:
        """states: returns the state of each supervisor. names_databases: whether each line names its database."""
        self._states = states
        self._names_databases = names_databases

    def page(self, path: str) -> Page | None:
        states = self._states()
        if path == "/healthz":
            problems = self._problems(_why_unhealthy, states)
            return _state_page(problems, is_ok=not problems)
        if path == "/readyz":
            problems = self._problems(_why_not_ready, states)
            return _state_page(problems, is_ok=len(problems) < len(states))
        if path == "/metrics":
            families = figures(states, names_databases=self._names_databases)
            return Page("200 OK", exposition(families), CONTENT_TYPE)
        return None

    def _problems(self, problem_of: Callable[[SupervisorState], str], states: Sequence[SupervisorState]) -> list[str]:
        problems = [(state.alias, " ".join(problem.split())) for state in states if (problem := problem_of(state))]
        return [f"{alias}: {problem}" if self._names_databases else problem for alias, problem in problems]


def _why_unhealthy(state: SupervisorState) -> str:
    """Why the container should be restarted; empty if a restart would not help. A lost database is no reason."""
    if state.is_late:
        return f"the supervisor's control loop has not turned for {time.monotonic() - state.turned_at:.0f} s"
    if frozen := [worker.name for worker in state.workers if worker.is_frozen]:
        return f"frozen, and being replaced: {', '.join(frozen)}"
    return ""


def _why_not_ready(state: SupervisorState) -> str:
    if state.database is DatabaseState.LOST:
        return "the database cannot be reached"
    if not state.has_worker:
        return "no worker process runs"
    return ""


def _state_page(problems: Sequence[str], *, is_ok: bool) -> Page:
    lines = ["ok", *problems] if is_ok else problems
    return Page("200 OK" if is_ok else "503 Service Unavailable", "".join(f"{line}\n" for line in lines))


MOST_HTTP_EXCHANGES = 50
"""The most clients at the same time. A further client takes the place of the oldest client."""

ACCEPT_DELAY = 0.1
"""Seconds until the next try if the system has no file descriptor left."""


def open_port(host: str, port: int) -> socket.socket:
    """Listen on a port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=MOST_HTTP_EXCHANGES)
    listener.setblocking(False)
    return listener


class HealthPort:
    """Serves the pages in its own thread. `start`, `stop` and `close` are called by the supervisor's main thread."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._answer = answer
        self._exchanges: list[HttpExchange] = []  # the oldest first
        self._stopped, self._stop = socket.socketpair()  # a byte sent by `_stop` ends the thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which also finishes the requests that have begun before a `stop`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skipqueue-health", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Clients wait until the next `start`."""
        if self._thread is not None:
            self._stop.send(b"\0")
            self._thread.join()  # the thread never blocks
            self._thread = None

    def close(self) -> None:
        """Close the port, at the end or in a forked child process. The thread must not run."""
        for exchange in self._exchanges:
            exchange.close()
        for open_socket in (self._listener, self._stopped, self._stop):
            open_socket.close()

    # Called in the thread of the port

    def _run(self) -> None:
        while True:
            ready = self._wait()
            if self._stopped in ready:
                self._stopped.recv(1)
                return
            for exchange in [candidate for candidate in self._exchanges if candidate in ready and candidate.proceed()]:
                self._end(exchange)
            if self._listener in ready:
                self._accept()
            now = time.monotonic()
            for exchange in [candidate for candidate in self._exchanges if candidate.end_at <= now]:
                self._end(exchange)

    def _wait(self) -> list[object]:
        first_end = min((exchange.end_at for exchange in self._exchanges), default=None)
        timeout = None if first_end is None else max(first_end - time.monotonic(), 0)
        with selectors.PollSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for exchange in self._exchanges:
                selector.register(exchange, exchange.waits_for)
            return [key.fileobj for key, _ in selector.select(timeout)]

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:  # the client is gone
            return
        except OSError:
            time.sleep(ACCEPT_DELAY)
            return
        if len(self._exchanges) == MOST_HTTP_EXCHANGES:
            self._end(self._exchanges[0])
        self._exchanges.append(HttpExchange(client, self._answer, time.monotonic()))

    def _end(self, exchange: HttpExchange) -> None:
        self._exchanges.remove(exchange)
        with contextlib.suppress(OSError):
            exchange.close()

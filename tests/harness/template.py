"""The template: a process that has imported Django and the queue, and from which `manage.py` processes are forked.

A fork takes a tenth of the processor time of a new Python, which would import everything again. The template has no
settings, and imports only modules that need no settings. Each child is a process of its own, like a new Python.

Most children have equal settings. These children are forked from a second template: a child of the first that has also
called `django.setup()` with these settings.

A template reads a line of JSON for each child from a socket. It writes a line when the child runs, and a line when the
child has ended. The first template's argument is the number of its socket; the second template gets its socket through
the first.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import django

ROOT = Path(__file__).parents[2]
LIBRARIES = sys.path[1:]

LOADS = """
import contextlib, sys, django
django.setup()
import django_skipqueue.management.commands.runworker, django_skipqueue.supervisor.supervisor
import django_skipqueue.supervisor.processes
with contextlib.suppress(ImportError):
    import django_skipqueue.parts.databases.steward
print(*sys.modules)
"""
"""A program that imports the modules that a worker imports, and prints the names of all imported modules."""


class Forked:
    """A child of the template, with the methods of `subprocess.Popen` that tests call."""

    def __init__(self, template: "Template", pid: int) -> None:
        self._template = template
        self.pid = pid

    def poll(self) -> int | None:
        return self._template.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("manage.py", timeout or 0)
            self._template.listen(0.5)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Template:
    """Asks a template process to fork children, and stores the exit codes of the children."""

    def __init__(self, connection: socket.socket, process: "subprocess.Popen[bytes] | Forked") -> None:
        self._socket = connection
        self._process = process
        self._received = b""
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        self._lock = threading.RLock()

    def start(
        self,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        terminal: str | None,
        *,
        template_end: socket.socket | None = None,
    ) -> Forked:
        """Run `manage.py` with these arguments. Its output goes to the log, or to the terminal of this name.

        template_end: a socket. With it, the child is a template that has called `django.setup()`, and serves there.
        """
        log.touch()
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "log": str(log),
            "terminal": terminal,
        }
        with self._lock:
            descriptors = [template_end.fileno()] if template_end else []
            socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], descriptors)
            while not self._started:
                self.listen(None)
            return Forked(self, self._started.pop())

    def exit_code(self, pid: int) -> int | None:
        self.listen(0)
        return self._codes.get(pid)

    def listen(self, timeout: float | None) -> None:
        """Read lines that the template has written, and wait for up to `timeout` seconds for the first."""
        with self._lock:
            if select.select([self._socket], [], [], timeout)[0]:
                data = self._socket.recv(65536)
                assert data, "the template of the processes has ended"
                *lines, self._received = (self._received + data).split(b"\n")
                for pid, code in map(json.loads, lines):
                    if code is None:
                        self._started.append(pid)
                        self._codes.pop(pid, None)
                    else:
                        self._codes[pid] = code


@cache
def template() -> Template:
    """The template of this process that has no settings."""
    connection, template_end = socket.socketpair()
    with template_end:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(template_end.fileno())],
            cwd=ROOT,
            pass_fds=[template_end.fileno()],
            start_new_session=True,
        )
    return Template(connection, process)


READY: dict[object, Template] = {}
"""The templates that have called `django.setup()`, by their settings and environment."""


def ready_template(settings: str, folder: Path, environment: Mapping[str, str]) -> Template:
    """The template that has called `django.setup()` with these settings, whose module is in the folder."""
    path = environment["PYTHONPATH"].removeprefix(str(folder))
    key = (settings, frozenset({**environment, "PYTHONPATH": path, "PYTEST_CURRENT_TEST": ""}.items()))
    if key not in READY:
        connection, template_end = socket.socketpair()
        with template_end:
            log = folder / "template_log"
            process = template().start([], folder, environment, log, None, template_end=template_end)
        READY[key] = Template(connection, process)
    return READY[key]


def serve(number: int) -> dict[str, Any]:
    """Fork a child for each request. Returns the request in the child. The template exits when the socket is closed."""
    requests = socket.socket(fileno=number)
    child_ended_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    signal.set_wakeup_fd(wakeup_fd)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    received = b""
    while True:
        ready, _, _ = select.select([requests.fileno(), child_ended_fd], [], [])
        if child_ended_fd in ready:
            os.read(child_ended_fd, 4096)
            for pid, code in _exit_codes_by_pid():
                requests.sendall(json.dumps([pid, code]).encode() + b"\n")
        if requests.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(requests, 65536, 1)
            if not data:
                sys.exit()
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                group_reader, group_writer = os.pipe()
                if pid := os.fork():
                    os.close(group_writer)
                    # Wait until the child leads its process group, to which a test may send a signal at once.
                    os.read(group_reader, 1)
                    os.close(group_reader)
                    requests.sendall(json.dumps([pid, None]).encode() + b"\n")
                    for descriptor in descriptors:
                        os.close(descriptor)
                else:
                    request = {**json.loads(line), "descriptors": descriptors}
                    if request["terminal"]:
                        os.login_tty(os.open(request["terminal"], os.O_RDWR))
                    else:
                        os.setsid()
                    os.close(group_writer)
                    os.close(group_reader)
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(child_ended_fd)
                    os.close(wakeup_fd)
                    requests.close()
                    return request


def _exit_codes_by_pid() -> list[tuple[int, int]]:
    exit_codes = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            exit_codes.append((child[0], os.waitstatus_to_exitcode(child[1])))
    return exit_codes


def become(request: dict[str, Any]) -> None:
    """Give this child the folder, output, environment and arguments that `python -m django …` would have."""
    os.chdir(request["folder"])
    if not request["terminal"]:
        for path, flags, numbers in [("/dev/null", os.O_RDONLY, [0]), (request["log"], os.O_WRONLY, [1, 2])]:
            file = os.open(path, flags)
            for descriptor in numbers:
                os.dup2(file, descriptor)
            os.close(file)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [request["folder"], *environment["PYTHONPATH"].split(os.pathsep), *LIBRARIES]
    sys.argv[1:] = request["arguments"]
    sys.orig_argv[1:] = ["-m", "django", *request["arguments"]]


def load() -> None:
    """Import the modules that a worker imports, except modules that need settings, such as models."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")]),
    }
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    for name in loaded.stdout.split():
        if name.split(".")[0] != "tests":
            with contextlib.suppress(Exception):
                import_module(name)


def forked(number: int) -> list[int]:
    """Serve, and in each child become what was requested. Returns the descriptors that were sent to the child."""
    gc.collect()
    gc.freeze()  # otherwise each child's garbage collector would write to all memory pages, and so copy them
    request = serve(number)
    become(request)
    return list(request["descriptors"])


def end(code: int) -> NoReturn:
    """End as Python does, but do not free every imported object, which would copy memory pages of the template."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    load()
    if descriptors := forked(int(sys.argv[1])):
        django.setup()
        forked(descriptors[0])
    code = 0
    try:
        runpy.run_module("django", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        code = error.code or 0
    end(code)

"""Real `manage.py runworker` processes on the database under test, as an operator starts and signals them."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from django.db import connections
from django.db.models import Count

from django_skipqueue.models import Job, Worker

from ..app.waiting import DEADLINE, wait_until
from .template import Forked, ready_template, template

ROOT = Path(__file__).parents[2]

SETTINGS = """\
from tests.settings import *

for alias, name in {names!r}.items():
    DATABASES[alias] = {{**DATABASES[alias], "NAME": name}}
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_skipqueue",
    "django_skipqueue.contrib.celery",
    "tests.app",
    *{apps!r},
]
del ROOT_URLCONF
SKIPQUEUE = {skipqueue!r}
{more}
"""


class ManagePy:
    """A process that runs `manage.py COMMAND …` in its own process group, with its own settings module in `folder`.

    jobs: the source of a `jobs` module that only this process knows; its tasks are `extra.jobs.<name>`.
    settings: more source for the settings module.
    terminal: whether the process has its own terminal, on which `type` types.
    module: the Python module to run instead of Django's commands, such as `celery`.
    is_new: whether to start a new Python, instead of a fork of one that has imported the package.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        skipqueue: Mapping[str, Any] | None = None,
        jobs: str | None = None,
        settings: str = "",
        environment: Mapping[str, str] | None = None,
        terminal: bool = False,
        module: str = "django",
        is_new: bool = False,
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arguments = " ".join(arguments)
        names = {alias: connections[alias].settings_dict["NAME"] for alias in connections}
        apps = []
        if jobs is not None:
            (folder / "extra").mkdir()
            (folder / "extra" / "__init__.py").touch()
            (folder / "extra" / "jobs.py").write_text(textwrap.dedent(jobs))
            apps.append("extra")
        source = SETTINGS.format(
            names=names, apps=apps, skipqueue=dict(skipqueue or {}), more=textwrap.dedent(settings)
        )
        (folder / "process_settings.py").write_text(source)
        is_usual = module == "django" and not (apps or skipqueue or settings or environment or terminal or is_new)
        self._log = folder / "log"
        path = os.pathsep.join(
            [str(folder), str(ROOT), str(ROOT / "example_project"), os.environ.get("PYTHONPATH", "")]
        )
        removed = ("SKIPQUEUE_", "PGAPPNAME")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
        command = [sys.executable, "-m", module, *arguments]
        environment = {
            **clean,
            "PYTHONPATH": path,
            "DJANGO_SETTINGS_MODULE": "process_settings",
            **(environment or {}),
        }
        used = ready_template(source, folder, environment) if is_usual else template()
        self.process: subprocess.Popen[bytes] | Forked
        if terminal:
            self._keyboard, screen = pty.openpty()
            environment["TERM"] = "xterm"
            self.process = used.start(list(arguments), folder, environment, self._log, os.ttyname(screen))
            os.close(screen)
            threading.Thread(target=self._read_screen, daemon=True).start()
        elif module == "django" and not is_new:
            self.process = used.start(list(arguments), folder, environment, self._log, None)
        else:
            self.process = self._in_background(command, folder, environment)

    def _in_background(self, command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _read_screen(self) -> None:
        with (
            self._log.open("ab", buffering=0) as log,
            contextlib.suppress(OSError),
        ):  # raised once the process has ended
            while text := os.read(self._keyboard, 4096):
                log.write(text)
        os.close(self._keyboard)

    def type(self, text: str) -> None:
        r"""Type a text on the terminal of the process: `\x03` is Ctrl-C."""
        os.write(self._keyboard, text.encode())

    @property
    def log(self) -> str:
        """The text that the process has written to its standard output and error so far."""
        return self._log.read_text(errors="replace")

    def wait(self, *, deadline: float = 60.0) -> int:
        """Wait until the process has ended. Returns its exit code."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"It did not end within {deadline:g} s.\n{self.log}") from None

    def wait_for(self, text: str, *, times: int = 1, deadline: float = DEADLINE) -> None:
        """Wait until the process has written `text` at least `times` times."""
        try:
            wait_until(lambda: self.log.count(text) >= times, f"{text!r} in the log", deadline=deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal only to this process, as `kill` does."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its children, as Ctrl-C and systemd do."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill the process and its children if they still run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not group_exists(self.process.pid), "its children are gone")


def group_exists(group: int) -> bool:
    """Whether any process of the group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # ProcessLookupError: the process ended between `open` and `read`
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """The ids of the child processes of this process that still run."""
    return [child.pid for child in psutil.Process(pid).children() if is_alive(child.pid)]


def workers(count: int = 1) -> list[Worker]:
    """Wait until the worker table has at least `count` rows. Returns the rows."""
    wait_until(lambda: Worker.objects.count() >= count, f"{count} workers have said that they are alive")
    return list(Worker.objects.order_by("name"))


def statuses() -> dict[str, int]:
    """The number of jobs of each status."""
    return dict(Job.objects.order_by().values_list("status").annotate(Count("pk")))


def wait_for_statuses(*, deadline: float = DEADLINE, **expected: int) -> None:
    """Wait until there are exactly these numbers of jobs, such as `completed=3, failed=1`."""
    try:
        wait_until(lambda: statuses() == expected, str(expected), deadline=deadline)
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {statuses()}") from None

"""Follows docs/tutorial.md: runs the page's commands and Python code, writes its files, and compares the output.

Run it with the Python of an environment in which django_skipqueue is installed. The tutorial is tried on the Django of
that environment. DATABASE_URL must be set, and its user must be allowed to create databases.
"""

import contextlib
import doctest
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import django
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"

DEADLINE = 60.0
"""How many seconds the script waits for something that the tutorial says will happen."""

DONE_ALREADY = ("mkdir ", "python3 -m venv", ". .venv/bin/activate", "python -m pip install")
"""How the commands begin that are not run, because they would make the environment in which this script runs."""


class Block(NamedTuple):
    """A fenced code block of the page."""

    line: int
    language: str
    code: str
    before: str
    """The paragraph above the block."""
    only: str
    """For which versions of Django the block is, such as `django < 6.1`. Empty for all versions."""


def blocks(page: str) -> Iterator[Block]:
    """All blocks of the page, in order."""
    for fenced in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        above = page[: fenced.start()].rstrip()
        only = re.search(r"\n<!-- only: (.*) -->$", above)
        before = above.removesuffix(only[0] if only else "").rstrip().rpartition("\n\n")[2]
        line = page[: fenced.start()].count("\n") + 1
        yield Block(line, fenced[1], fenced[2], before, only[1] if only else "")


class Tutorial:
    """Acts like a reader of the page, who does everything in order, in an empty folder and with an empty database."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.worker: Terminal | None = None
        self.shell_names: dict[str, Any] = {}
        """The variables in the Python shell. Empty until the shell is opened."""
        server = conninfo_to_dict(os.environ["DATABASE_URL"])
        libpq = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
        os.environ.update({name: str(server[key]) for key, name in libpq.items() if server.get(key)})
        os.environ["DJANGO_SUPERUSER_PASSWORD"] = "admin"
        for name in ("DJANGO_SETTINGS_MODULE", "PYTHONPATH"):
            os.environ.pop(name, None)

    def follow(self, block: Block) -> None:
        """Do what the block shows, unless it is for another version of Django."""
        actions: dict[str, Callable[[Block], None]] = {
            "console": self.type,
            "python": self.write,
            "pycon": self.run_in_shell,
            "text": self.see,
        }
        if is_for_this_django(block):
            actions[block.language](block)

    # One method for each kind of block

    def type(self, block: Block) -> None:
        """Run the commands of the block, and compare their output with the block's other lines."""
        printed = ""
        for line in block.code.splitlines():
            if not line.startswith("$ "):
                assert line in printed, f"{line!r} was not printed, but {printed!r}"
            elif not line[2:].startswith(DONE_ALREADY):
                printed = self.run(line[2:])

    def write(self, block: Block) -> None:
        """Write the block into the file that the paragraph above it names. If none is named, run it in the shell."""
        file_names = re.findall(r"`([\w/]+\.py)`", block.before)
        if not file_names and "settings" not in block.before:
            exec(block.code, self.shell_names)
            return
        name = file_names[-1] if file_names else "shop/settings.py"
        code = block.code
        if name == "shop/settings.py":
            code = code.replace("# … Django's own apps …", "*INSTALLED_APPS,").replace('"shop"', repr(self.database))
            code = f"{(self.folder / name).read_text()}\n{code}"
        (self.folder / name).write_text(code)

    def run_in_shell(self, block: Block) -> None:
        """Run the block as `manage.py shell` would, and compare the output."""
        if not self.shell_names:
            sys.path.insert(0, str(self.folder))
            os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
            django.setup()
            self.shell_names["__name__"] = "shell"
        source = block.code.replace("…", "...")
        test = doctest.DocTestParser().get_doctest(source, self.shell_names, "tutorial", str(PAGE), block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
        test.globs = self.shell_names
        assert runner.run(test, clear_globs=False).failed == 0, "the shell shows something else"

    def see(self, block: Block) -> None:
        """Wait until the worker's terminal shows the text of the block."""
        assert self.worker is not None, "no worker was started"
        self.worker.wait_for(pattern_of(block.code))

    # Commands

    def run(self, command: str) -> str:
        """Run one command of the page. Returns its output."""
        if command.startswith("createdb "):
            return ""  # `project` has already made the database, under a unique name
        program, *arguments = command.split()
        assert program in ("python", "django-admin"), f"what is {command!r}?"
        module = ["-m", "django"] if program == "django-admin" else []
        argv = [sys.executable, *module, *arguments]
        match arguments[-1]:
            case "runworker":
                self.worker = Terminal(argv, self.folder)
                return ""
            case "runserver":
                return self.visit_admin(argv)
            case "createsuperuser":
                argv += ["--noinput", "--username", "admin", "--email", "admin@example.com"]
            case "shell":
                return ""
        done = subprocess.run(argv, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def visit_admin(self, argv: list[str]) -> str:
        """Start the web server, and check that the admin answers."""
        server = subprocess.Popen(
            [*argv, "--noreload", "8765"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: "Log in" in read("http://127.0.0.1:8765/admin/"), "the admin answers")
        finally:
            server.terminate()
            server.wait()
        return ""

    def stop(self) -> None:
        """Press Ctrl-C in the worker's terminal."""
        assert self.worker is not None, "no worker was started"
        self.worker.type("\x03")
        assert self.worker.wait() == 0, self.worker.shown

    def end(self) -> None:
        """Kill the worker, and close the connections."""
        if self.worker is not None:
            self.worker.kill()
        if self.shell_names:
            from django.db import connections

            connections.close_all()


class Terminal:
    """Runs a command in its own terminal, and remembers what the terminal shows."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._pid, self._screen = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execve(command[0], command, {**os.environ, "TERM": "xterm"})
        self.shown = ""
        self._code: int | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Wait until the terminal shows a text that matches the pattern."""
        try:
            wait_until(lambda: re.search(pattern, self.shown), "it is shown")
        except AssertionError as error:
            raise AssertionError(f"{error}\n---- wanted\n{pattern}\n---- shown\n{self.shown}") from None

    def wait(self) -> int:
        """Wait until the command has ended. Returns its exit code."""
        wait_until(self._has_ended, "it ends")
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Kill the command if it is still running."""
        if not self._has_ended():
            os.killpg(self._pid, 9)
            self.wait()

    def _has_ended(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # raised when the command has ended and its terminal is closed
            while output := os.read(self._screen, 65_536):
                self.shown += re.sub(r"\x1b\[[\d;]*m|\r", "", output.decode(errors="replace"))


def pattern_of(text: str) -> str:
    """A regular expression for a worker's output, in which times, durations and the machine's name may differ."""
    patterns = {
        r"\d\d:\d\d:\d\d": r"\d\d:\d\d:\d\d",
        r"laptop:\d+": r"\S+:\d+",
        r"(?<==)[\d.]+m?s\b": r"<?[\d.]+m?s",
        r"^…\n": r"(?:.*\n)*?",
        r"…": r".*",
    }
    result, rest = "", text
    variable_text = re.compile("|".join(f"({key})" for key in patterns), re.MULTILINE)
    while match := variable_text.search(rest):
        assert match.lastindex is not None
        result += re.escape(rest[: match.start()]) + list(patterns.values())[match.lastindex - 1]
        rest = rest[match.end() :]
    return result + re.escape(rest)


def is_for_this_django(block: Block) -> bool:
    """Whether the block is for this Django, according to a comment such as `<!-- only: django < 6.1 -->` above it."""
    if not block.only:
        return True
    version = re.fullmatch(r"django < (\d+)\.(\d+)", block.only)
    assert version, f"what is {block.only!r}?"
    return (int(version[1]), int(version[2])) > django.VERSION


def read(url: str) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
    return ""


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"after {DEADLINE:g} s still not so: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def project() -> Iterator[Tutorial]:
    """Make an empty folder and an empty database, and remove both afterwards."""
    name = f"tutorial_{os.getpid()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        psycopg.connect(make_conninfo(os.environ["DATABASE_URL"], dbname="postgres"), autocommit=True) as server,
    ):
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        tutorial = Tutorial(Path(folder).resolve(), name)
        try:
            yield tutorial
        finally:
            tutorial.end()
            for database in (name, f"test_{name}"):
                server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


def main() -> None:
    """Follow the whole page, and stop at the first thing that is not as the page says."""
    with project() as tutorial:
        count = 0
        for block in blocks(PAGE.read_text()):
            count += 1
            try:
                tutorial.follow(block)
            except Exception as error:
                raise SystemExit(f"{PAGE.name}:{block.line}: {type(error).__name__}: {error}") from error
        tutorial.stop()
    print(f"The tutorial's {count} blocks are as they say on Django {django.__version__}.")


if __name__ == "__main__":
    main()

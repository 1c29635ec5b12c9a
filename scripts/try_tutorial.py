"""Do what docs/tutorial.md says, by its own text: its commands, its files, its Python, and compare what it shows.

Run it with the Python of an environment in which django_skipqueue is installed, and with DATABASE_URL set: that user
must be allowed to create databases. What Django is installed there decides what the tutorial is tried on.
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
"""Seconds for anything that the tutorial says will happen."""

DONE_ALREADY = ("mkdir ", "python3 -m venv", ". .venv/bin/activate", "python -m pip install")
"""How commands begin that make the environment which this script runs in."""


class Block(NamedTuple):
    """One fenced block of the page."""

    line: int
    language: str
    code: str
    before: str
    """The paragraph above it."""
    only: str
    """For which Django it is; empty: for every one."""


def blocks(page: str) -> Iterator[Block]:
    """Every block of the page, in its order."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        above = page[: found.start()].rstrip()
        only = re.search(r"\n<!-- only: (.*) -->$", above)
        before = above.removesuffix(only[0] if only else "").rstrip().rpartition("\n\n")[2]
        line = page[: found.start()].count("\n") + 1
        yield Block(line, found[1], found[2], before, only[1] if only else "")


class Tutorial:
    """A reader who does everything in the order of the page, in an empty folder and on a database of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.worker: Terminal | None = None
        self.shell: dict[str, Any] = {}  # the names in it; empty before it is opened
        given = conninfo_to_dict(os.environ["DATABASE_URL"])
        libpq = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
        os.environ.update({name: str(given[key]) for key, name in libpq.items() if given.get(key)})
        os.environ["DJANGO_SUPERUSER_PASSWORD"] = "admin"
        for name in ("DJANGO_SETTINGS_MODULE", "PYTHONPATH"):
            os.environ.pop(name, None)

    def follow(self, block: Block) -> None:
        """Do what one block shows."""
        does: dict[str, Callable[[Block], None]] = {
            "console": self.type,
            "python": self.write,
            "pycon": self.run_in_shell,
            "text": self.see,
        }
        if is_for_this_django(block):
            does[block.language](block)

    # Each kind of block

    def type(self, block: Block) -> None:
        """Type its commands, and compare what they print."""
        printed = ""
        for line in block.code.splitlines():
            if not line.startswith("$ "):
                assert line in printed, f"{line!r} was not printed, but {printed!r}"
            elif not line[2:].startswith(DONE_ALREADY):
                printed = self.run(line[2:])

    def write(self, block: Block) -> None:
        """Write it into the file that the paragraph above names; without a name it belongs into the shell."""
        found = re.findall(r"`([\w/]+\.py)`", block.before)
        if not found and "settings" not in block.before:
            exec(block.code, self.shell)
            return
        name = found[-1] if found else "shop/settings.py"
        code = block.code
        if name == "shop/settings.py":
            code = code.replace("# … Django's own apps …", "*INSTALLED_APPS,").replace('"shop"', repr(self.database))
            code = f"{(self.folder / name).read_text()}\n{code}"
        (self.folder / name).write_text(code)

    def run_in_shell(self, block: Block) -> None:
        """Run it as `manage.py shell` would, and compare what is shown."""
        if not self.shell:
            sys.path.insert(0, str(self.folder))
            os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
            django.setup()
            self.shell["__name__"] = "shell"
        source = block.code.replace("…", "...")
        test = doctest.DocTestParser().get_doctest(source, self.shell, "tutorial", str(PAGE), block.line)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
        test.globs = self.shell
        assert runner.run(test, clear_globs=False).failed == 0, "the shell shows something else"

    def see(self, block: Block) -> None:
        """Wait until the worker has written this."""
        assert self.worker is not None, "no worker was started"
        self.worker.wait_for(pattern_of(block.code))

    # Commands

    def run(self, command: str) -> str:
        """Do one command; what it prints."""
        if command.startswith("createdb "):
            return ""  # `project` has made it, under a name that nobody else has
        program, *arguments = command.split()
        assert program in ("python", "django-admin"), f"what is {command!r}?"
        module = ["-m", "django"] if program == "django-admin" else []
        line = [sys.executable, *module, *arguments]
        match arguments[-1]:
            case "runworker":
                self.worker = Terminal(line, self.folder)
                return ""
            case "runserver":
                return self.visit_admin(line)
            case "createsuperuser":
                line += ["--noinput", "--username", "admin", "--email", "admin@example.com"]
            case "shell":
                return ""
        done = subprocess.run(line, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def visit_admin(self, line: list[str]) -> str:
        """Start the web server, and look whether the admin is there."""
        server = subprocess.Popen(
            [*line, "--noreload", "8765"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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
        """Leave no process and no connection behind."""
        if self.worker is not None:
            self.worker.kill()
        if self.shell:
            from django.db import connections

            connections.close_all()


class Terminal:
    """A command in a terminal of its own, and what it shows there."""

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
        """Wait until it shows this."""
        try:
            wait_until(lambda: re.search(pattern, self.shown), "it is shown")
        except AssertionError as error:
            raise AssertionError(f"{error}\n---- wanted\n{pattern}\n---- shown\n{self.shown}") from None

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        wait_until(self._has_ended, "it ends")
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """End it, if it has not ended."""
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
        with contextlib.suppress(OSError):  # raised when nobody has the terminal open any more
            while seen := os.read(self._screen, 65_536):
                self.shown += re.sub(r"\x1b\[[\d;]*m|\r", "", seen.decode(errors="replace"))


def pattern_of(text: str) -> str:
    """A regular expression for what a worker writes: times, durations and the name of the machine differ."""
    varying = {
        r"\d\d:\d\d:\d\d": r"\d\d:\d\d:\d\d",
        r"laptop:\d+": r"\S+:\d+",
        r"(?<==)[\d.]+m?s\b": r"<?[\d.]+m?s",
        r"^…\n": r"(?:.*\n)*?",
        r"…": r".*",
    }
    pattern, rest = "", text
    any_of = re.compile("|".join(f"({each})" for each in varying), re.MULTILINE)
    while found := any_of.search(rest):
        assert found.lastindex is not None
        pattern += re.escape(rest[: found.start()]) + list(varying.values())[found.lastindex - 1]
        rest = rest[found.end() :]
    return pattern + re.escape(rest)


def is_for_this_django(block: Block) -> bool:
    """What the comment above it says: `<!-- only: django < 6.1 -->`."""
    if not block.only:
        return True
    found = re.fullmatch(r"django < (\d+)\.(\d+)", block.only)
    assert found, f"what is {block.only!r}?"
    return (int(found[1]), int(found[2])) > django.VERSION


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
    """An empty folder and an empty database, both removed afterwards."""
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
            for each in (name, f"test_{name}"):
                server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(each)))


def main() -> None:
    """Follow the whole page, or stop at the first thing that is not as it says."""
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

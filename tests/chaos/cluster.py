"""A PostgreSQL that the scenarios stop, pause and replace, whose connections they cut, and whose clock they change.

Invariant: `fsync` and `synchronous_commit` are on, so that committed rows survive a crash.
"""

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from scripts.embedded_postgres import Server

from .clocks import Clock

DATABASE = "chaos"

LONGEST_COPY = 60.0
"""Seconds within which a standby must have caught up with the server."""

IS_SYNCHRONOUS = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


class Cluster:
    """A server in the folder `home`, reachable through Unix sockets only; machines connect through a proxy.

    The server may have a standby. After a failover the standby is the server, and a new standby takes the place of the
    old server. The URL names both servers: libpq connects to the server that accepts writes.
    """

    def __init__(self, home: Path) -> None:
        # The library without locks: PostgreSQL reads the time in signal handlers too, where a lock could block.
        self.clock = Clock(home / "clock", threads=False)
        self._server = Server(home, self.clock.environment)
        self._standby = Server(home.with_name(f"{home.name}-2"), self.clock.environment)
        self._is_copied = False
        socket_folders = ",".join(str(server.sockets) for server in (self._server, self._standby))
        self._address = f"host={quote(socket_folders)}&port=5432,5432&target_session_attrs=read-write"
        self.url = self._url(DATABASE)

    @property
    def sockets(self) -> list[str]:
        """The sockets of the server and of its standby, even if there is no standby yet."""
        return [str(server.sockets / ".s.PGSQL.5432") for server in (self._server, self._standby)]

    def create(self) -> None:
        """Make the server with its database, and start it."""
        self.clock.set(0)
        self._server.start()
        with self.connect(database="postgres") as connection:
            connection.execute("ALTER SYSTEM SET deadlock_timeout = '100ms'")
            # The server closes the connections of killed processes a moment later.
            connection.execute("ALTER SYSTEM SET max_connections = 300")
        self._server.stop()
        self._server.start()
        self._server.create_database(DATABASE)

    def connect(self, *, database: str = DATABASE) -> psycopg.Connection[Any]:
        """Connect in autocommit mode, without the proxy, to the server that accepts writes."""
        return psycopg.connect(self._url(database), autocommit=True, connect_timeout=10)

    def start(self) -> None:
        """Start the server again, and wait until it accepts connections."""
        self._server.start()

    def crash(self) -> None:
        """Stop the server as a power cut would, without a checkpoint: the next start recovers from the log."""
        self._server.pg("pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata", self._server.data)

    def stop(self) -> None:
        """Stop the server in order, even if it is paused or was killed."""
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            self.resume()
        self.kill_standby()
        self._server.stop()

    def pause(self) -> None:
        """Stop all processes of the server by SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all processes of the server run again."""
        self._signal(signal.SIGCONT)

    # The standby

    def add_standby(self) -> None:
        """Make a copy of the server as a synchronous standby: from now on each commit waits for it."""
        self.remove_standby()
        self._standby.home.mkdir()
        self._standby.give_to_system_user(self._standby.home)
        source = f"host={self._server.sockets} port=5432 user=postgres"
        self._server.pg("pg_basebackup", "--dbname", source, "--checkpoint=fast", "-R", "--pgdata", self._standby.data)
        self._standby.start()
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + LONGEST_COPY
            while not connection.execute(IS_SYNCHRONOUS).fetchone():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The standby did not follow within {LONGEST_COPY:g} s.")
                time.sleep(0.05)
        self._is_copied = True

    def remove_standby(self) -> None:
        """Stop the standby, so that commits no longer wait for it."""
        if self._is_copied:
            with self.connect() as connection:
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                connection.execute("SELECT pg_reload_conf()")
            self._is_copied = False
        self.kill_standby()
        shutil.rmtree(self._standby.home, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL all processes of the server."""
        _kill(self._server)

    def kill_standby(self) -> None:
        """SIGKILL all processes of the standby, or of the former server."""
        _kill(self._standby)

    def refuse_writes(self) -> None:
        """Make the server refuse transactions that write. The server and its sessions stay."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Promote the standby to the server; the former server can become its standby."""
        self._standby.pg("pg_ctl", "promote", "--wait", "--pgdata", self._standby.data)
        self._server, self._standby = self._standby, self._server
        self._is_copied = False

    def terminate_backends(self, rng: random.Random, *, share: float) -> int:
        """Terminate a random share of the sessions on the server. Returns how many."""
        with self.connect() as connection:
            sessions = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend' ORDER BY backend_start, pid",
                [DATABASE],
            ).fetchall()
            chosen = [pid for (pid,) in sessions if rng.random() < share]
            connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [chosen])
        return len(chosen)

    def _url(self, database: str) -> str:
        return f"postgres://postgres@/{database}?{self._address}"

    def _signal(self, number: signal.Signals) -> None:
        _signal(_processes(self._server), number)


def _processes(server: Server) -> list[psutil.Process]:
    """The processes of a running server. The postmaster is first, because it starts the others, and must stop first."""
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    return [postmaster, *postmaster.children(recursive=True)]


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _kill(server: Server) -> None:
    """SIGKILL a server, if it runs, and delete its pid file: another program may soon have the process id."""
    try:
        processes = _processes(server)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    _signal(processes, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)
    (server.data / "postmaster.pid").unlink()

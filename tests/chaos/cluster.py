"""A PostgreSQL of our own, to be stopped, paused, robbed of its connections, put into another time, and replaced.

Invariant: it is durable (`fsync` and `synchronous_commit` are on), so that what was committed is there after a crash.
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
"""Seconds in which a standby must have what the server has."""

IS_SYNCHRONOUS = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


class Cluster:
    """In the folder `home`, reachable through Unix sockets only; machines come through a proxy.

    It may have a standby, to which it can fail over: then the standby is the server, and the server is rebuilt as its
    standby. An address names both: libpq connects to the one that takes writes.
    """

    def __init__(self, home: Path) -> None:
        # A library without locks: PostgreSQL asks for the time in signal handlers, too.
        self.clock = Clock(home / "clock", threads=False)
        self._server = Server(home, self.clock.environment)
        self._standby = Server(home.with_name(f"{home.name}-2"), self.clock.environment)
        self._is_copied = False
        both = ",".join(str(server.sockets) for server in (self._server, self._standby))
        self._address = f"host={quote(both)}&port=5432,5432&target_session_attrs=read-write"
        self.url = self._url(DATABASE)

    @property
    def sockets(self) -> list[str]:
        """The socket of the server, and after it that of its standby, whether there is one yet or not."""
        return [str(server.sockets / ".s.PGSQL.5432") for server in (self._server, self._standby)]

    def create(self) -> None:
        """Make it, with its database, and start it."""
        self.clock.set(0)
        self._server.start()
        with self.connect(database="postgres") as connection:
            connection.execute("ALTER SYSTEM SET deadlock_timeout = '100ms'")
            connection.execute("ALTER SYSTEM SET max_connections = 300")  # the dead keep theirs for a moment
        self._server.stop()
        self._server.start()
        self._server.create_database(DATABASE)

    def connect(self, *, database: str = DATABASE) -> psycopg.Connection[Any]:
        """A connection in autocommit, past the proxy, to the server that takes writes."""
        return psycopg.connect(self._url(database), autocommit=True, connect_timeout=10)

    def start(self) -> None:
        """Start it again; returns once it answers."""
        self._server.start()

    def crash(self) -> None:
        """End it as a power cut would: no shutdown checkpoint; the next start recovers from the log."""
        self._server.pg("pg_ctl", "stop", "--wait", "--mode=immediate", "--pgdata", self._server.data)

    def stop(self) -> None:
        """End it in order, in whatever state it was left."""
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            self.resume()
        self.kill_standby()
        self._server.stop()

    def pause(self) -> None:
        """Have none of its processes run."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have all of its processes run again."""
        self._signal(signal.SIGCONT)

    # The standby

    def add_standby(self) -> None:
        """Copy the server, and from now on have every commit wait until the copy has it as well."""
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
        """End the standby, and have commits wait for nobody."""
        if self._is_copied:
            with self.connect() as connection:
                connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                connection.execute("SELECT pg_reload_conf()")
            self._is_copied = False
        self.kill_standby()
        shutil.rmtree(self._standby.home, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL to all of the server's processes."""
        _kill(self._server)

    def kill_standby(self) -> None:
        """SIGKILL to the processes of the standby, or of the server that was demoted."""
        _kill(self._standby)

    def refuse_writes(self) -> None:
        """Have the server, which goes on, begin no transaction that writes. Its sessions stay open."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Have the standby take writes: it is the server from now on, and the other one its standby-to-be."""
        self._standby.pg("pg_ctl", "promote", "--wait", "--pgdata", self._standby.data)
        self._server, self._standby = self._standby, self._server
        self._is_copied = False

    def terminate_backends(self, choose: random.Random, *, share: float) -> int:
        """Cut a random share of the connections from the server's side; how many."""
        with self.connect() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend' ORDER BY backend_start, pid",
                [DATABASE],
            ).fetchall()
            chosen = [pid for (pid,) in found if choose.random() < share]
            connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [chosen])
        return len(chosen)

    def _url(self, database: str) -> str:
        return f"postgres://postgres@/{database}?{self._address}"

    def _signal(self, number: signal.Signals) -> None:
        _signal(_processes(self._server), number)


def _processes(server: Server) -> list[psutil.Process]:
    """Those of a running server, the postmaster first, so that it replaces nobody meanwhile."""
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    return [postmaster, *postmaster.children(recursive=True)]


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _kill(server: Server) -> None:
    """End a server, if it runs, as a power cut would. Its number may soon be that of another program: forget it."""
    try:
        processes = _processes(server)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    _signal(processes, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=10)
    (server.data / "postmaster.pid").unlink()

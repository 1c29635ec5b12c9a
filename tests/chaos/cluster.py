"""A PostgreSQL of our own, to be stopped, paused, robbed of its connections, and put into another time.

Invariant: it is durable (`fsync` and `synchronous_commit` are on), so that what was committed is there after a crash.
"""

import contextlib
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import psycopg

from scripts.embedded_postgres import Server

from .clocks import Clock

DATABASE = "chaos"


class Cluster:
    """In the folder `home`, reachable through a Unix socket only; machines come through a proxy."""

    def __init__(self, home: Path) -> None:
        # A library without locks: PostgreSQL asks for the time in signal handlers, too.
        self.clock = Clock(home / "clock", threads=False)
        self._server = Server(home, self.clock.environment)
        self.socket = str(self._server.sockets / ".s.PGSQL.5432")
        self.url = self._server.url(DATABASE)

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
        """A connection in autocommit, past the proxy."""
        return psycopg.connect(self._server.url(database), autocommit=True, connect_timeout=10)

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
        self._server.stop()

    def pause(self) -> None:
        """Have none of its processes run."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have all of its processes run again."""
        self._signal(signal.SIGCONT)

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

    def _signal(self, number: signal.Signals) -> None:
        """To the postmaster first, so that it replaces nobody meanwhile."""
        postmaster = psutil.Process(int((self._server.data / "postmaster.pid").read_text().split()[0]))
        for process in [postmaster, *postmaster.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

"""Three databases, each on its own server behind a proxy and with its own load, and one `runworker` for all of them.

Invariant: the load and the watching of a database have their own threads and connections, which bypass the proxy.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import environ
import psycopg
from django.db import Error, connections
from django.test.utils import override_settings

from . import jobs
from .cluster import Cluster
from .logbook import Logbook
from .machines import LONGEST_STOP, ROOT
from .proxy import Proxy
from .records_of_three import Record
from .settings import SKIPQUEUE

JOBS_PER_STATEMENT = 10
"""The number of jobs that are deferred by one statement."""

SECONDS_BETWEEN_CHECKS = 0.1
"""Seconds between two checks of the heartbeats."""

OLDEST_HEARTBEAT_AGE = "SELECT extract(epoch FROM now() - min(heartbeat_at))::float8 FROM skipqueue_worker"

STATUSES_AND_FINISH_TIMES = "SELECT id, status, extract(epoch FROM finished_at)::float8 FROM skipqueue_job"

FINISHED_LATELY = "SELECT count(*) FROM skipqueue_job WHERE finished_at > now() - interval '1 second'"

UNFINISHED = "SELECT 1 FROM skipqueue_job WHERE finished_at IS NULL LIMIT 1"


class Database:
    """One of the three databases."""

    def __init__(self, alias: str, folder: Path, *, rate: float) -> None:
        folder.mkdir(parents=True)
        self.alias = alias
        self.record = Record()
        self.cluster = Cluster(folder / "postgres")
        (folder / "postgres").mkdir()
        self.proxy = Proxy(self.cluster.sockets[0])
        self._rate = rate
        self._is_deferring, self._is_watching = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def boot(self) -> None:
        """Start the server and the proxy."""
        self.cluster.create()
        self.proxy.start()

    def start(self) -> None:
        """Start to defer jobs and to watch heartbeats, until `stop`."""
        for is_running, run in ((self._is_deferring, self._defer), (self._is_watching, self._watch)):
            is_running.set()
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop deferring jobs and watching heartbeats."""
        self._is_deferring.clear()
        self._is_watching.clear()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """End all threads and processes."""
        self.stop()
        self.proxy.stop()
        self.cluster.stop()

    @property
    def is_done(self) -> bool:
        """Whether each job is finished."""
        with self.cluster.connect() as connection:
            return connection.execute(UNFINISHED).fetchone() is None

    def finished_lately(self) -> int:
        """How many jobs were finished in the last second."""
        with self.cluster.connect() as connection:
            row = connection.execute(FINISHED_LATELY).fetchone()
        return int(row[0]) if row else 0

    def read(self) -> None:
        """Read the statuses and times of all jobs into the record."""
        with self.cluster.connect() as connection:
            rows = connection.execute(STATUSES_AND_FINISH_TIMES).fetchall()
        self.record.statuses = {id: status for id, status, _ in rows}
        self.record.finished = sorted(at for *_, at in rows if at is not None)

    @property
    def address(self) -> str:
        """The URL by which `runworker` connects, through the proxy."""
        query = f"host=127.0.0.1&port={self.proxy.port}&sslmode=disable&gssencmode=disable"
        return f"postgres://postgres@/chaos?{query}"

    def _defer(self) -> None:
        due_at = time.monotonic()
        while self._is_deferring.is_set():
            try:
                ids = jobs.blink.using(database=self.alias).defer_many([()] * JOBS_PER_STATEMENT)
                self.record.promised.update(ids)
            except Error:  # the server is down: these jobs may be committed or not
                connections[self.alias].close()
            due_at = max(due_at + JOBS_PER_STATEMENT / self._rate, time.monotonic() - 1)
            time.sleep(max(due_at - time.monotonic(), 0))
        connections[self.alias].close()

    def _watch(self) -> None:
        while self._is_watching.is_set():
            try:
                with self.cluster.connect() as connection:
                    while self._is_watching.is_set():
                        row = connection.execute(OLDEST_HEARTBEAT_AGE).fetchone()
                        if row and row[0] is not None:
                            self.record.ages.append((time.time(), row[0]))
                        time.sleep(SECONDS_BETWEEN_CHECKS)
            except psycopg.Error:
                time.sleep(SECONDS_BETWEEN_CHECKS)


class Runworker:
    """The `runworker` for all three databases, with its supervisors and workers."""

    def __init__(self, databases: list[Database]) -> None:
        self.logbook = Logbook("runworker")
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings_of_three",
            "CHAOS_DATABASES": "\n".join(database.address for database in databases),
            "CHAOS_WITNESS": os.environ["DATABASE_URL"],
            "PYTHONPATH": str(ROOT),
        }
        log = self.logbook.open()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "django", "runworker", "--name", "one-of-three"],
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(log)

    def stop(self) -> int | None:
        """Send SIGTERM to the main process. Returns its exit code; `None` if it did not end."""
        self._process.terminate()
        try:
            return self._process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End all threads and processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def use_databases(databases: list[Database]) -> Iterator[None]:
    """Let the queue of this process use these databases during the block."""
    for database in databases:
        address = environ.Env.db_url_config(database.cluster.url)
        connections.settings[database.alias] = {**connections.settings["default"], **address}
    aliases = tuple(database.alias for database in databases)
    with override_settings(SKIPQUEUE={**SKIPQUEUE, "DATABASES": aliases}):
        yield

"""Each migration after the first is applied and reversed, while workers and clients of the commit before it run.

No lock of a migration stops a `.defer()` for more than 100 ms, and no job is lost.
"""

import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, LiteralString

import psycopg
import pytest
from django.db import connections

from .app.sessions import connect
from .app.waiting import wait_until

ROOT = Path(__file__).parents[1]

STATE_BEFORE = {"0003_held_sequences": ("0001_initial", "2cb36988971777b1b8002bc5f4842b2c30ef0d2f")}
"""The last migration of a change, with the migration and the commit before this change."""

LONGEST_LOCK_SECONDS = 0.1

OLD_ROWS = 500_000
"""Finished jobs in the table, so that an index takes its time."""

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SETTINGS = """\
import os
import environ
DATABASES = {"default": environ.Env().db("DATABASE_URL") | {"NAME": os.environ["LOAD_NAME"]}}
DATABASES["default"].setdefault("OPTIONS", {})["application_name"] = os.environ["LOAD_WHO"]
INSTALLED_APPS = ["django_skipqueue", "load"]
SKIPQUEUE = {"POLL_INTERVAL": 0.2}
SECRET_KEY = "load"
USE_TZ = True
"""

JOBS = """\
from django_skipqueue import by, job, limit

@job
def plain(): pass

@job(concurrency=limit(2))
def limited(): pass

@job(sequence=by("key"))
def in_order(key): pass
"""

CLIENT = """\
import itertools, sys
import django
django.setup()
from load.jobs import in_order, limited, plain
for number in itertools.count():
    plain.defer()
    limited.defer()
    in_order.defer(number % 3)
"""

OLD_JOBS = """
INSERT INTO skipqueue_job (queue_name, task, args, kwargs, status, attempts, finished_at, limit_key, limit_kind)
SELECT 'old', 'old', '[]', '{}', 'completed', 1, now(), 'old', 'sequence' FROM generate_series(1, %s)
"""

# The longest time for which a `.defer()` of the client is now waiting for a lock.
LONGEST_WAIT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - locks.waitstart)), 0)::float8
FROM pg_locks AS locks
JOIN pg_stat_activity AS client ON client.pid = locks.pid
WHERE NOT locks.granted AND client.application_name = 'client' AND client.datname = current_database()
"""


class Load:
    """An old worker and an old client, on a database of their own."""

    def __init__(self, folder: Path, name: str, commit: str) -> None:
        self.folder = folder
        self._name = name
        self._old = folder / "old"
        package = subprocess.run(
            ["git", "archive", commit, "django_skipqueue"], cwd=ROOT, capture_output=True, check=True, timeout=60
        ).stdout
        with tarfile.open(fileobj=BytesIO(package)) as archive:
            archive.extractall(self._old, filter="data")
        (folder / "load").mkdir()
        (folder / "load" / "__init__.py").touch()
        (folder / "load" / "jobs.py").write_text(JOBS)
        (folder / "load_settings.py").write_text(SETTINGS)

    def migrate(self, migration: str) -> None:
        process = subprocess.run(
            [sys.executable, "-m", "django", "migrate", "django_skipqueue", migration],
            env=self._environment(ROOT, "migrate"),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert process.returncode == 0, process.stderr

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run an old worker and an old client during the block. At its end, the worker finishes all jobs."""
        log = (self.folder / "log").open("wb")
        worker = self._start(log, "worker", "-m", "django", "runworker", "--processes", "1", "--concurrency", "2")
        client = self._start(log, "client", "-c", CLIENT)
        try:
            yield
            assert client.poll() is None, (self.folder / "log").read_text()
            client.terminate()
            client.wait(30)
            wait_until(self.is_drained, "all jobs are finished", deadline=60)
            assert worker.poll() is None, (self.folder / "log").read_text()
        finally:
            for process in (client, worker):
                process.terminate()
                process.wait(60)
            log.close()

    def wait_for_jobs(self) -> None:
        """Wait until the worker has finished some more jobs of the client."""
        count_before = self.finished()
        wait_until(lambda: self.finished() >= count_before + 30, "the worker finishes jobs")

    def finished(self) -> int:
        return self._count("SELECT count(*) FROM skipqueue_job WHERE status = 'completed' AND task <> 'old'")

    def is_drained(self) -> bool:
        return self._count("SELECT count(*) FROM skipqueue_job WHERE finished_at IS NULL") == 0

    def failed(self) -> int:
        return self._count("SELECT count(*) FROM skipqueue_job WHERE status = 'failed'")

    def connect(self) -> psycopg.Connection[tuple[float]]:
        return connect(dbname=self._name)

    def _count(self, statement: LiteralString) -> int:
        with self.connect() as connection:
            row = connection.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    def _start(self, log: IO[bytes], who: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self._environment(self._old, who),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
        )

    def _environment(self, package: Path, who: str) -> dict[str, str]:
        return {
            **os.environ,
            "LOAD_NAME": self._name,
            "LOAD_WHO": who,
            "PYTHONPATH": f"{package}{os.pathsep}{self.folder}",
            "DJANGO_SETTINGS_MODULE": "load_settings",
        }


@contextmanager
def database(name: str) -> Iterator[None]:
    with connect() as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def longest_wait(load: Load) -> Iterator[list[float]]:
    """Checks a hundred times a second how long the client has waited for a lock. Yields the waits above 0."""
    waits: list[float] = []
    has_ended = threading.Event()

    def measure_waits() -> None:
        with load.connect() as connection:
            while not has_ended.wait(0.01):
                row = connection.execute(LONGEST_WAIT).fetchone()
                if row and row[0]:
                    waits.append(row[0])

    thread = threading.Thread(target=measure_waits)
    thread.start()
    try:
        yield waits
    finally:
        has_ended.set()
        thread.join()


@pytest.mark.parametrize("migration", STATE_BEFORE)
def test_each_migration_runs_forwards_and_backwards_under_load(migration: str, tmp_path: Path) -> None:
    migration_before, commit = STATE_BEFORE[migration]
    if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("This clone lacks the commit before the migration.")
    name = f"{connections['default'].settings_dict['NAME']}_under_load"
    with database(name):
        load = Load(tmp_path, name, commit)
        load.migrate(migration_before)
        with load.connect() as connection:
            connection.execute(OLD_JOBS, [OLD_ROWS])
        with load.running(), longest_wait(load) as waits:
            for target in (migration, migration_before):
                load.wait_for_jobs()
                load.migrate(target)
            load.wait_for_jobs()
        assert load.failed() == 0
    assert max(waits, default=0.0) <= LONGEST_LOCK_SECONDS


def test_every_migration_except_the_first_is_tested() -> None:
    folder = ROOT / "django_skipqueue" / "migrations"
    assert max(path.stem for path in folder.glob("0*.py")) in STATE_BEFORE

"""A fresh database for each measurement, on the server of DATABASE_URL, and statistics of this server."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import environ
import psycopg
from psycopg import sql

SERVER = "BENCHMARKS_SERVER"
"""Environment variable: in the process of a measurement, the DATABASE_URL of the process that started it."""


@contextmanager
def fresh_database() -> Iterator[dict[str, str]]:
    """Create a database, yield the environment variables for a process that uses it, and drop it."""
    name = f"skipqueue_bench_{uuid.uuid4().hex[:12]}"
    with server() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield {**os.environ, "DATABASE_URL": _url_of(name), SERVER: os.environ["DATABASE_URL"]}
    finally:
        with server() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def about_server() -> str:
    """The server's version, and the settings that decide what a commit costs."""
    with server() as connection:
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        shown = [connection.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone() for name in names]
    return ", ".join(f"{name} {value[0]}" for name, value in zip(names, shown, strict=True) if value)


def server() -> psycopg.Connection[Any]:
    """A connection to the server, but to another database than the measured one, so that it is not counted."""
    return connect(SERVER if SERVER in os.environ else "DATABASE_URL")


def connect(variable: str = "DATABASE_URL") -> psycopg.Connection[Any]:
    """A psycopg connection, in autocommit mode, to the database of this environment variable."""
    settings = environ.Env().db(variable)
    options = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"], "dbname": settings["NAME"]}
    options |= {"password": settings["PASSWORD"], **settings.get("OPTIONS", {})}
    return psycopg.connect(**{key: value for key, value in options.items() if value}, autocommit=True)


def transactions(database: str) -> int:
    """How many transactions the database has had, as far as its sessions have reported them.

    A session reports its transactions at its end, and when it has been idle for a while (at most ten seconds).
    """
    with server() as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [database]
        ).fetchone()
    return int(row[0]) if row else 0


def written_ahead() -> int:
    """The bytes of write-ahead log that the server has written since it was set up."""
    with server() as connection:
        row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    return int(row[0]) if row else 0


def wait_until_unused(database: str, seconds: float = 30) -> None:
    """Wait until the last session of the database has ended, and so has reported its transactions."""
    deadline = time.monotonic() + seconds
    with server() as connection:
        while connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'", [database]
        ).fetchone():
            if time.monotonic() > deadline:
                raise TimeoutError(f"A session still uses {database}.")
            time.sleep(0.02)


def _url_of(name: str) -> str:
    address, _, options = os.environ["DATABASE_URL"].partition("?")
    return f"{address.rpartition('/')[0]}/{name}{'?' if options else ''}{options}"

"""A fresh database for each measurement, on the server of DATABASE_URL."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import environ
import psycopg
from psycopg import sql


@contextmanager
def fresh_database() -> Iterator[str]:
    """Create a database, hand out its DATABASE_URL, and drop it."""
    name = f"skipqueue_bench_{uuid.uuid4().hex[:12]}"
    with _server() as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield _url_of(name)
    finally:
        with _server() as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def about_server() -> str:
    """The server's version, and the settings that decide what a commit costs."""
    with _server() as server:
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        shown = [server.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone() for name in names]
    return ", ".join(f"{name} {value[0]}" for name, value in zip(names, shown, strict=True) if value)


def _server() -> psycopg.Connection:
    settings = environ.Env().db("DATABASE_URL")
    given = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"], "dbname": settings["NAME"]}
    given |= {"password": settings["PASSWORD"], **settings.get("OPTIONS", {})}
    return psycopg.connect(**{key: value for key, value in given.items() if value}, autocommit=True)


def _url_of(name: str) -> str:
    address, _, options = os.environ["DATABASE_URL"].partition("?")
    return f"{address.rpartition('/')[0]}/{name}{'?' if options else ''}{options}"

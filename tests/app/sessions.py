"""Other connections to the database under test."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import psycopg
from django.db import connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor

from django_skipqueue import migrations

from .waiting import DEADLINE, wait_until

P = ParamSpec("P")
R = TypeVar("R")


LAST_MIGRATION = max(path.stem for path in Path(migrations.__file__).parent.glob("[0-9]*.py"))


PARAMETERS_OF_DJANGO = ("context", "cursor_factory", "prepare_threshold")
"""The connection parameters of Django that libpq does not know."""


def connect(*, autocommit: bool = True, alias: str = "default", **options: Any) -> psycopg.Connection[Any]:
    """Open a psycopg connection to the same database, without opening a connection of Django in this thread."""
    parameters = connections[alias].get_connection_params()
    parameters_of_libpq = {name: value for name, value in parameters.items() if name not in PARAMETERS_OF_DJANGO}
    return psycopg.connect(**{**parameters_of_libpq, "autocommit": autocommit, **options})


@contextmanager
def schema(name: str) -> Iterator[Callable[[str | None], None]]:
    """Make an empty schema. Yields a function that migrates the queue's tables there; `None` removes all tables."""
    schema_connection = connections["default"].copy(alias=name)
    connections[name] = schema_connection

    def migrate(migration: str | None) -> None:
        targets_after = [("skipqueue_celery", "0001_initial")] if migration == LAST_MIGRATION else []
        targets_before = [("skipqueue_celery", None)] if migration is None else []
        MigrationExecutor(schema_connection).migrate([*targets_before, ("django_skipqueue", migration), *targets_after])

    with schema_connection.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; SET search_path TO {name}")
    try:
        yield migrate
    finally:
        with schema_connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {name} CASCADE")
        schema_connection.close()
        del connections[name]


class Session:
    """A second user of the queue: a thread with its own Django connection, in which the test calls functions."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.pid: int = self(_backend_pid)

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Call the function in this session, without waiting for it."""
        return self._thread.submit(function, *args, **kwargs)

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this session, and return what it returns."""
        return self.start(function, *args, **kwargs).result(timeout=DEADLINE)

    def begin(self) -> None:
        """Open a transaction that stays open."""
        self._atomic = transaction.atomic()
        self(self._atomic.__enter__)

    def commit(self) -> None:
        """Commit the open transaction."""
        self(self._atomic.__exit__, None, None, None)

    def rollback(self) -> None:
        """Roll the open transaction back."""
        self(transaction.set_rollback, True)
        self.commit()

    def wait_until_blocked(self) -> None:
        """Wait until the statement of this session waits for a lock of another session."""
        wait_until(lambda: _waits_for_lock(self.pid), "the other session waits for a lock")

    def close(self) -> None:
        """End the thread and its connections, even if its statement still waits for a lock."""
        with connect() as canceller:
            canceller.execute("SELECT pg_cancel_backend(%s)", [self.pid])
        self._thread.submit(connections.close_all)
        self._thread.shutdown()


def _backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _waits_for_lock(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone()[0])

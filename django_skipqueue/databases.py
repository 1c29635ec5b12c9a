"""Database connections: the queue's own, and those that Django keeps for each thread of a worker."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

SHORTEST_LIFE = 60.0
"""Seconds for which a thread keeps a connection between jobs where the project's CONN_MAX_AGE is 0."""


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """A new connection to this database, in autocommit, and outside the project's pool.

    A pooled one may be handed to somebody else between two statements, and a pool does not survive a fork.
    """
    connection = connections.create_connection(alias)
    given = connection.settings_dict.get("OPTIONS", {})
    options = {key: value for key, value in given.items() if key not in ("pool", "isolation_level")}
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
    return connection


KEEPALIVES = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Options of libpq by which a peer that is gone is noticed within seconds. A project's own come before them."""

TIMEOUTS = "-c statement_timeout=8s -c lock_timeout=5s -c idle_in_transaction_session_timeout=10s"
"""What the server is asked to give up on. Said when connecting, so that it costs no statement."""


READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""At a higher level two workers that claim at once fail each other's statements, instead of skipping each other's
rows."""


def guard(connection: BaseDatabaseWrapper, alias: str, *, timeouts: bool = True) -> None:
    """Have this connection fail rather than hang, and at READ COMMITTED, from the next time that it is opened."""
    given = connections.settings[alias].get("OPTIONS", {})
    options = {**KEEPALIVES, **connection.settings_dict["OPTIONS"]}
    # The last word counts: the project's about timeouts, ours about the level.
    ours = (TIMEOUTS, READ_COMMITTED) if timeouts else ("", "")
    options["options"] = " ".join(filter(None, [ours[0], given.get("options", ""), ours[1]]))
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}


@contextmanager
def unpooled(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Within this block, what Django does in this thread on this database goes through a connection of our own."""
    before, connections[alias] = connections[alias], own_connection(alias)
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        connections[alias] = before


class _Opened(threading.local):
    """The connections that were opened in this thread."""

    def __init__(self) -> None:
        self.connections: dict[BaseDatabaseWrapper, None] = {}


_opened = _Opened()


def _note_opened(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _opened.connections[connection] = None


connection_created.connect(_note_opened, dispatch_uid="django_skipqueue.databases")


def tidy() -> None:
    """Close this thread's connections that broke, grew too old, or were left in a transaction; keep the others.

    Called after each job. To ask Django for the thread's connections costs more than all else that the worker does for
    a job, so those that were opened are noted instead; a thread whose tasks use no database has none.
    """
    for connection in _opened.connections:
        if connection.in_atomic_block:
            _leave_block(connection)
        elif connection.connection is not None and not _is_good(connection):
            connection.close()


def _leave_block(connection: BaseDatabaseWrapper) -> None:
    """Roll back what a task began and never ended. Within a block, close() would only take effect at its end."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.close()


def _is_good(connection: BaseDatabaseWrapper) -> bool:
    """Whether to keep a connection for the next job."""
    settings = connection.settings_dict
    if settings.get("OPTIONS", {}).get("pool"):
        return False  # closing it gives it back to the pool, which costs nothing
    if connection.autocommit != settings["AUTOCOMMIT"] or connection.run_on_commit:
        return False  # hooks that were interrupted are not for the next job
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is not None and pgconn.transaction_status != TransactionStatus.IDLE:
        return False  # an interrupted statement may still be under way, or a task has typed BEGIN
    if connection.errors_occurred:
        return False  # without asking the server: where it does not answer, the job would never come out
    # CONN_MAX_AGE = 0, Django's default, means "until the end of the request": here, a new connection for each job.
    kept_anyway = 0.0 if settings["CONN_MAX_AGE"] else SHORTEST_LIFE
    return connection.close_at is None or time.monotonic() < connection.close_at + kept_anyway


def close_all() -> None:
    """Close this thread's connections, at its end."""
    connections.close_all()


def close_before_fork() -> None:
    """Close this thread's connections and the project's pools: two processes must not share a socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()

"""Database connections of the queue itself, apart from the connections that Django keeps for each thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """A new connection to this database, in autocommit, and outside the project's pool.

    Between two statements a pool may give a connection to another user, and a pool does not survive a fork.
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
"""Options of libpq that detect a dead peer within seconds. A project's own options override them."""

SERVER_KEEPALIVES = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
)
"""Options with which the server detects a dead client within seconds, and ends the client's transaction."""

TIMEOUTS = f"-c statement_timeout=8s -c lock_timeout=5s -c idle_in_transaction_session_timeout=10s {SERVER_KEEPALIVES}"
"""Timeouts of the server, as connection options: to set them takes no statement."""

READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""The isolation level. At a higher level, two claims fail instead of skipping each other's rows."""


def guard(connection: BaseDatabaseWrapper, alias: str, *, timeouts: bool = True) -> None:
    """Set timeouts and READ COMMITTED for this connection, from the next time that it is opened."""
    given = connections.settings[alias].get("OPTIONS", {})
    options = {**KEEPALIVES, **connection.settings_dict["OPTIONS"]}
    # PostgreSQL uses the last `-c` of a name: the project's timeouts override ours, our isolation level the project's.
    ours = (TIMEOUTS, READ_COMMITTED) if timeouts else ("", "")
    options["options"] = " ".join(filter(None, [ours[0], given.get("options", ""), ours[1]]))
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}


def name_sessions(name: str) -> None:
    """Give this `application_name` to the sessions that Django opens in this process from now on."""
    for connection in connections.all():
        if connection.vendor == "postgresql":
            connections.settings[connection.alias].setdefault("OPTIONS", {})["application_name"] = name


def keep_sessions_alive(alias: str) -> None:
    """Have the server detect soon that this process is gone, in the sessions that Django opens from now on."""
    options = connections.settings[alias].setdefault("OPTIONS", {})
    given = options.get("options", "")
    if SERVER_KEEPALIVES not in given:
        options["options"] = f"{SERVER_KEEPALIVES} {given}".rstrip()


@contextmanager
def dedicated_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Within this block, Django uses a connection of our own for this thread and database."""
    before, connections[alias] = connections[alias], own_connection(alias)
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        connections[alias] = before


def close_before_fork() -> None:
    """Close this thread's connections and the project's pools: two processes must not share a socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()

"""Make database connections for the queue itself, separate from the connections that Django keeps for each thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """Make a new connection to this database, in autocommit mode, which does not use the project's connection pool.

    A pool may give the connection to somebody else between two statements, and a pool does not survive a fork.
    """
    connection = connections.create_connection(alias)
    project_options = connection.settings_dict.get("OPTIONS", {})
    options = {key: value for key, value in project_options.items() if key not in ("pool", "isolation_level")}
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
"""Options of libpq, with which a client detects a dead server within seconds. The project's options override these."""

SERVER_KEEPALIVES = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
)
"""Options with which the server detects a dead client within seconds, and then ends the client's transaction."""

TIMEOUTS = f"-c statement_timeout=8s -c lock_timeout=5s -c idle_in_transaction_session_timeout=10s {SERVER_KEEPALIVES}"
"""The server timeouts, as options of the connection, so that no statement is needed to set them."""

READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""The isolation level. At a higher level, claims would fail instead of skipping each other's rows."""


def guard(connection: BaseDatabaseWrapper, alias: str, *, timeouts: bool = True) -> None:
    """Set timeouts and READ COMMITTED for this connection. They take effect when it is opened the next time."""
    project_options = connections.settings[alias].get("OPTIONS", {}).get("options", "")
    options = {**KEEPALIVES, **connection.settings_dict["OPTIONS"]}
    # If an option is repeated, PostgreSQL uses the last one. So the project's timeouts override our timeouts, and our
    # isolation level overrides the project's.
    first_options, last_options = (TIMEOUTS, READ_COMMITTED) if timeouts else ("", "")
    options["options"] = " ".join(filter(None, [first_options, project_options, last_options]))
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}


def name_sessions(name: str) -> None:
    """Set the `application_name` of all sessions that Django opens in this process from now on."""
    for connection in connections.all():
        if connection.vendor == "postgresql":
            connections.settings[connection.alias].setdefault("OPTIONS", {})["application_name"] = name


def keep_sessions_alive(alias: str) -> None:
    """Make the server detect soon if this process dies, in all sessions that Django opens from now on."""
    options = connections.settings[alias].setdefault("OPTIONS", {})
    project_options = options.get("options", "")
    if SERVER_KEEPALIVES not in project_options:
        options["options"] = f"{SERVER_KEEPALIVES} {project_options}".rstrip()


@contextmanager
def dedicated_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """Within this block, Django uses a separate connection for this thread and database."""
    previous, connections[alias] = connections[alias], own_connection(alias)
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        connections[alias] = previous


def close_before_fork() -> None:
    """Close this thread's connections and the project's pools, because two processes must not share a socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()

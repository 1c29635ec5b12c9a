"""Check that a database can hold the queue. The system checks call this module, and `runworker` before it starts.

`pools_transactions` finds out whether a pooler in transaction mode is between this process and the server.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import psycopg
from django.db import Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from ..conf import own_apps
from ..exceptions import QueueUnavailable
from ..jobs.advice import migrate_command, not_postgresql_message, postgresql_hint
from ..queue.notify import listen, unlisten
from ..queue.session import backend_pid
from ..queue.store import Store
from .control_connection import NotificationProbe
from .own_connections import dedicated_connection, guard

OLDEST_POSTGRESQL = 15

CHECK_TIME = 5.0
"""If there are several databases, the seconds for which each database may delay the start of the command."""


class QueueUnreachable(QueueUnavailable):
    """The server of the database does not answer. It may answer later."""

    def __init__(self, alias: str, reason: str) -> None:
        super().__init__(f"The database {alias!r} cannot be reached: {reason}")
        self.alias = alias
        self.reason = reason


class Problem(NamedTuple):
    """Why a database cannot hold the queue, and what to do."""

    message: str
    hint: str


def check_databases(aliases: Sequence[str]) -> list[QueueUnreachable]:
    """Call `check_database` for several databases. Returns an error for each database that cannot be reached."""
    unreachable = []
    for alias in aliases:
        try:
            with answers_required():
                check_database(alias)
        except QueueUnreachable as error:
            unreachable.append(error)
    return unreachable


def engine_problem(alias: str) -> Problem | None:
    """Return the problem with this database, if the settings alone show one."""
    if alias not in connections:
        aliases = ", ".join(sorted(connections))
        return Problem(f"DATABASES has no alias {alias!r}.", f"Choose one of {aliases} for the queue.")
    if connections[alias].vendor != "postgresql":
        return Problem(not_postgresql_message(alias), postgresql_hint(alias))
    return None


def version_problem(alias: str, version: int) -> Problem | None:
    """Return the problem with the version of the server, if it is too old. `version` is a number such as 180004."""
    if version >= OLDEST_POSTGRESQL * 10_000:
        return None
    return Problem(
        f"The queue needs PostgreSQL {OLDEST_POSTGRESQL} or newer; the database {alias!r} is PostgreSQL "
        f"{version // 10_000}.",
        "Upgrade the server, or keep the queue in a newer one with SKIPQUEUE['DATABASE'].",
    )


def check_database(alias: str) -> None:
    """Raise `QueueUnavailable` unless workers can use this database. The error's message says what to do."""
    if problem := engine_problem(alias):
        raise QueueUnavailable(" ".join(problem))
    try:
        with dedicated_connection(alias) as connection:
            connection.ensure_connection()
            version = connection.pg_version  # type: ignore[attr-defined]
            missing = missing_migrations(connection)
    except Error as error:
        reason = _sentences(str(error))
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise QueueUnavailable(
                f"The role that logs in to the database {alias!r} lacks a right: {reason}. A worker reads "
                "django_migrations, and needs the rights on the queue's tables that the page Security of the "
                "documentation lists."
            ) from error
        raise QueueUnreachable(alias, reason) from error
    if problem := version_problem(alias, version):
        raise QueueUnavailable(" ".join(problem))
    if missing:
        raise QueueUnavailable(
            f"The database {alias!r} lacks the queue's tables or a change to them ({', '.join(missing)}). "
            f"Run: {migrate_command(alias)}"
        )


def _sentences(text: str) -> str:
    """Join the lines of a driver's error message to one line, and add missing full stops."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    ended_lines = [line if line[-1] in ".:?!," else f"{line}." for line in lines[:-1]]
    return " ".join([*ended_lines, *lines[-1:]])


@contextmanager
def answers_required(seconds: float = CHECK_TIME) -> Iterator[None]:
    """Raise `OperationalError` if the block takes longer, because the server hangs. Works only in the main thread."""

    def give_up(*_: Any) -> NoReturn:
        raise OperationalError(f"no answer for {seconds:g} s")

    handler_before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)


def missing_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the names of the package's migrations that were not applied to this database."""
    loader = MigrationLoader(connection)
    apps = own_apps()
    own_migrations = {(app, name) for app, name in loader.disk_migrations if app in apps}
    return sorted(name for app, name in own_migrations - set(loader.applied_migrations or {}))


ECHO_SECONDS = 1.0
"""How many seconds the probe's notification may take to arrive."""


def pools_transactions(alias: str) -> bool:
    """Return whether a pooler may give each transaction of a connection another session. If so, this takes a second.

    There is a pooler if the client and the server report different process ids. If a notification arrives, the pooler
    gives only whole sessions to its clients.
    """
    with dedicated_connection(alias) as connection:
        guard(connection, alias, timeouts=False)
        store = Store(alias)
        pid = backend_pid(store)
        session: Any = connection.connection
        if pid == session.info.backend_pid:
            return False
        probe = NotificationProbe(alias, "pooler probe")
        listen(store)
        try:
            probe.check()
            for notification in session.notifies(timeout=ECHO_SECONDS):
                probe.without_probes([notification.payload])
                if probe.has_arrived:
                    break
        finally:
            unlisten(store)
        return not probe.has_arrived

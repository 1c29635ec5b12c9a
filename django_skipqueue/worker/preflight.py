"""Checks that a database can hold the queue, for the system checks and before a worker starts.

`pools_transactions` finds out whether a pooler in transaction mode is between this process and the server.
"""

import re
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
"""Seconds for which each of several databases may delay the start of the command."""


class QueueUnreachable(QueueUnavailable):
    """The server of the database does not answer. It may do so later."""

    def __init__(self, alias: str, reason: str) -> None:
        super().__init__(f"The database {alias!r} cannot be reached: {reason}")
        self.alias = alias
        self.reason = reason


class Problem(NamedTuple):
    message: str
    hint: str


def check_databases(aliases: Sequence[str]) -> list[QueueUnreachable]:
    """Check several databases as `check_database` does. Returns an error for each that cannot be reached now."""
    unreachable = []
    for alias in aliases:
        try:
            with answers_required():
                check_database(alias)
        except QueueUnreachable as error:
            unreachable.append(error)
    return unreachable


def engine_problem(alias: str) -> Problem | None:
    """The problem of this alias that the settings alone show, if any."""
    if alias not in connections:
        aliases = ", ".join(sorted(connections))
        return Problem(f"DATABASES has no alias {alias!r}.", f"Choose one of {aliases} for the queue.")
    if connections[alias].vendor != "postgresql":
        return Problem(not_postgresql_message(alias), postgresql_hint(alias))
    return None


def version_problem(alias: str, version: int) -> Problem | None:
    """The problem with the version of the server, if any. version: as psycopg writes it, such as 180004."""
    if version >= OLDEST_POSTGRESQL * 10_000:
        return None
    return Problem(
        f"The queue needs PostgreSQL {OLDEST_POSTGRESQL} or newer; the database {alias!r} is PostgreSQL "
        f"{version // 10_000}.",
        "Upgrade the server, or keep the queue in a newer one with SKIPQUEUE['DATABASE'].",
    )


def check_database(alias: str) -> None:
    """Raise `QueueUnavailable` unless workers can use this database. Its message says what to do."""
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
    """The lines of a driver's error as the sentences of one line: a line may lack its full stop."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return re.sub(r"(?<=[^.:?!,])\n", ". ", "\n".join(filter(None, lines))).replace("\n", " ")


@contextmanager
def answers_required(seconds: float = CHECK_TIME) -> Iterator[None]:
    """Raise `OperationalError` in a block that takes longer: a stalled server sends no error. Main thread only."""

    def give_up(*_: Any) -> NoReturn:
        raise OperationalError(f"no answer for {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def missing_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    loader = MigrationLoader(connection)
    apps = own_apps()
    ours = {key for key in loader.disk_migrations if key[0] in apps}
    return sorted(name for app, name in ours - set(loader.applied_migrations or {}))


ECHO_SECONDS = 1.0
"""Seconds within which the notification of the probe must arrive."""


def pools_transactions(alias: str) -> bool:
    """Whether each transaction of a connection to this database may get another session. If so, this takes a second.

    A pooler gives its clients process ids of its own. If it pools sessions, notifications arrive nevertheless.
    """
    with dedicated_connection(alias) as connection:
        guard(connection, alias, timeouts=False)
        store = Store(alias)
        pid = backend_pid(store)
        raw: Any = connection.connection
        if pid == raw.info.backend_pid:
            return False
        probe = NotificationProbe(alias, "pooler probe")
        listen(store)
        try:
            probe.check()
            for notification in raw.notifies(timeout=ECHO_SECONDS):
                probe.without_probes([notification.payload])
                if probe.has_arrived:
                    break
        finally:
            unlisten(store)
        return not probe.has_arrived

"""The connections that Django keeps for a thread in which jobs run.

Invariant: an attempt gets no connection that an earlier attempt left half open, in a transaction or in the middle of a
statement, and none that the server has closed, as far as that shows without a statement.
"""

import select
import threading
import time
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.pq import PipelineStatus, TransactionStatus

from ...jobs.context import is_completion
from .running_attempt import Interrupter

SHORTEST_LIFE = 60.0
"""Seconds for which a thread keeps a connection between jobs, if CONN_MAX_AGE is 0."""

UNCHANGED_SECONDS = 0.1
"""Seconds after a job for which its connections are assumed to be unchanged."""

IDLE_TIME = 1.0
"""Seconds without a job after which a thread closes a connection, if CONN_MAX_AGE is 0."""

LONGEST_IDLE_TIME = 60.0
"""Seconds without a job after which a thread closes a connection, if CONN_MAX_AGE is not 0: a firewall or a proxy may
drop a connection without traffic."""


class _Here(threading.local):
    connections: "ThreadConnections | None" = None


here = _Here()


def _adopt(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Note a connection whose alias the project added after the thread began."""
    if here.connections is not None:
        here.connections.adopt(connection)


connection_created.connect(_adopt, dispatch_uid="django_skipqueue.worker.attempts.connections")


class ThreadConnections:
    """Made in its thread, and used there alone.

    The connections are outside the project's pool: a thread keeps its connections anyway, and an interruption while a
    pool hands out a connection would lose the connection.
    """

    def __init__(self, interrupter: Interrupter | None = None) -> None:
        self.opened: dict[BaseDatabaseWrapper, list[Any]] = {}
        """The connections that were opened once, or are being opened, each with its original execute_wrappers.

        To list the connections of the thread by Django's API would cost more than everything else that the worker does
        for a job. The dictionary stays empty in a thread whose tasks use no database.
        """
        self.patience: float | None = None
        """Seconds after which an idle thread should call `close_idle`; `None`: never."""
        self._interrupter = interrupter or Interrupter()
        self._idle_since = 0.0
        connections.close_all()
        for alias in connections:
            connections[alias] = connection = connections.create_connection(alias)
            options = connection.settings_dict.get("OPTIONS", {})
            if "pool" in options:
                others = {key: value for key, value in options.items() if key != "pool"}
                connection.settings_dict = {**connection.settings_dict, "OPTIONS": others}
            self._guard(connection)
        here.connections = self

    def adopt(self, connection: BaseDatabaseWrapper) -> None:
        if connection not in self.opened:
            self.opened[connection] = connection.execute_wrappers.copy()
            self._guard(connection)

    def check(self) -> None:
        """Before a job: close connections that are too old or closed by the server, as Django does before a request.

        With CONN_HEALTH_CHECKS, Django checks the connection at the first statement of the job. Raises nothing: the
        job is claimed already.
        """
        has_rested = time.monotonic() - self._idle_since > UNCHANGED_SECONDS
        for connection in self.opened:
            if connection.connection is not None and not connection.in_atomic_block:
                vars(connection)["health_check_done"] = False
                if has_rested and not (_is_good(connection) and _is_silent(connection)):
                    with suppress(Exception):
                        connection.close()

    def tidy(self, *, failed: bool = False) -> None:
        """After a job: close connections that broke, are too old, or were left in a transaction. Keep all others.

        If CONN_MAX_AGE is 0, a failed job closes all connections: its session settings must not reach the next job.
        """
        for connection, execute_wrappers in self.opened.items():
            if connection.in_atomic_block:
                _leave_block(connection)
            elif connection.connection is not None:
                is_over = failed and connection.settings_dict["CONN_MAX_AGE"] == 0
                if is_over or not _is_good(connection):
                    connection.close()
            if connection.execute_wrappers != execute_wrappers:
                connection.execute_wrappers[:] = execute_wrappers
        self.patience = IDLE_TIME
        self._idle_since = time.monotonic()

    def close_idle(self) -> None:
        idle_for = time.monotonic() - self._idle_since
        kept = []
        for connection in self.opened:
            if connection.connection is not None:
                longest = LONGEST_IDLE_TIME if connection.settings_dict["CONN_MAX_AGE"] != 0 else IDLE_TIME
                left = longest - idle_for
                if left > 0:
                    kept.append(left)
                else:
                    connection.close()
        self.patience = min(kept, default=None)

    def throw_away(self) -> None:
        """Close all connections of the thread, noted or not, in whatever state."""
        for connection in connections.all(initialized_only=True):
            with suppress(Exception):  # a driver that raises has lost its connection anyway
                _leave_block(connection)

    def _guard(self, connection: BaseDatabaseWrapper) -> None:
        """Allow no interruption while the connection is opened, commits or rolls back."""
        connect, commit, rollback = connection.connect, connection.commit, connection.rollback

        def connect_wholly() -> None:
            with self._interrupter.uninterrupted():
                self.opened[connection] = connection.execute_wrappers.copy()
                try:
                    connect()
                except BaseException:
                    connection.close()  # it may be open, but a receiver of connection_created has failed to set it up
                    raise
                self.opened[connection] = connection.execute_wrappers.copy()

        def commit_and_report() -> None:
            with self._interrupter.uninterrupted() as shield:
                completes = any(is_completion(hook[1]) for hook in connection.run_on_commit)
                commit()
                if completes:
                    shield.is_up = False  # `note_completed` ends the shield: only then is the commit recorded

        def roll_back_wholly() -> None:
            with self._interrupter.uninterrupted():
                rollback()

        vars(connection).update(connect=connect_wholly, commit=commit_and_report, rollback=roll_back_wholly)


def _leave_block(connection: BaseDatabaseWrapper) -> None:
    """Roll back a transaction that a task left open. Within an atomic block, close() would wait for the block's end."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.close()


def _is_good(connection: BaseDatabaseWrapper) -> bool:
    settings = connection.settings_dict
    if connection.autocommit != settings["AUTOCOMMIT"] or connection.run_on_commit:
        return False  # the next job must not run the hooks of an interrupted one
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is not None:
        if pgconn.transaction_status != TransactionStatus.IDLE:
            return False  # an interrupted statement may still be under way, or a task has sent BEGIN
        if pgconn.pipeline_status != PipelineStatus.OFF:
            return False  # the statements of the next job would wait for a pipeline that nobody ends
    if connection.errors_occurred:
        return False  # without a test statement: the job would never end if the server did not answer
    # CONN_MAX_AGE = 0, Django's default, closes at the end of a request: here, each job would open a connection.
    kept_anyway = 0.0 if settings["CONN_MAX_AGE"] else SHORTEST_LIFE
    return connection.close_at is None or time.monotonic() < connection.close_at + kept_anyway


def _is_silent(connection: BaseDatabaseWrapper) -> bool:
    """Whether nothing was received since the last statement. Data would mean, as a rule, that the session has ended."""
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is None:
        return True
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return not poll.poll(0)

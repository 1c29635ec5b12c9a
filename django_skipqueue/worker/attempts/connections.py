"""Manage the database connections that Django keeps for a thread in which tasks run.

A task never gets a connection that an earlier task has left half open, in a transaction, or in the middle of a
statement. Nor does it get a connection that the server has closed, as far as this can be seen without sending a
statement.
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
"""If CONN_MAX_AGE is 0, the seconds for which a thread keeps a connection from job to job."""

UNCHANGED_SECONDS = 0.1
"""A thread does not check its connections before a job that begins within this many seconds after the last job."""

IDLE_TIME = 1.0
"""If CONN_MAX_AGE is 0, a thread closes its connections after this many seconds without a job."""

LONGEST_IDLE_TIME = 60.0
"""If CONN_MAX_AGE is not 0, a thread closes its connections after this many seconds without a job, because a firewall
or proxy may drop a connection without traffic."""


class _ThisThread(threading.local):
    connections: "ThreadConnections | None" = None


this_thread = _ThisThread()


def _adopt(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Manage a connection whose alias the project has added after the thread began."""
    if this_thread.connections is not None:
        this_thread.connections.adopt(connection)


connection_created.connect(_adopt, dispatch_uid="django_skipqueue.worker.attempts.connections")


class ThreadConnections:
    """The database connections of one thread. The object is made in this thread, and used only there.

    The connections do not use the project's connection pool. A thread keeps its connections anyway, and if a task were
    interrupted while the pool returns a connection, the connection would be lost.
    """

    def __init__(self, interrupter: Interrupter | None = None) -> None:
        self.opened: dict[BaseDatabaseWrapper, list[Any]] = {}
        """The connections that tasks have opened, each with its original execute_wrappers.

        Listing the connections of the thread by Django's API would take longer than all the worker's other work for a
        job. The dictionary stays empty in a thread whose tasks use no database.
        """
        self.patience: float | None = None
        """Seconds after which an idle thread should call `close_idle`; `None` if it need not."""
        self._interrupter = interrupter or Interrupter()
        self._idle_since = 0.0
        connections.close_all()
        for alias in connections:
            connections[alias] = connection = connections.create_connection(alias)
            options = connection.settings_dict.get("OPTIONS", {})
            if "pool" in options:
                without_pool = {key: value for key, value in options.items() if key != "pool"}
                connection.settings_dict = {**connection.settings_dict, "OPTIONS": without_pool}
            self._guard(connection)
        this_thread.connections = self

    def adopt(self, connection: BaseDatabaseWrapper) -> None:
        if connection not in self.opened:
            self.opened[connection] = connection.execute_wrappers.copy()
            self._guard(connection)

    def check(self) -> None:
        """Close connections that are too old, or that the server has closed. Called before each job.

        Django does this before each request. With CONN_HEALTH_CHECKS, Django also checks a connection at the job's
        first statement. This method never raises, because the job is already claimed.
        """
        was_idle = time.monotonic() - self._idle_since > UNCHANGED_SECONDS
        for connection in self.opened:
            if connection.connection is not None and not connection.in_atomic_block:
                vars(connection)["health_check_done"] = False  # lets Django check it at the first statement
                if was_idle and not (_is_usable(connection) and _has_received_nothing(connection)):
                    with suppress(Exception):
                        connection.close()

    def tidy(self, *, failed: bool = False) -> None:
        """Close connections that broke, are too old, or were left in a transaction. Called after each job.

        If CONN_MAX_AGE is 0, all connections are closed after a failed job, because the next job must not get the
        session settings of the failed job.
        """
        for connection, execute_wrappers in self.opened.items():
            if connection.in_atomic_block:
                _leave_block(connection)
            elif connection.connection is not None:
                must_close = failed and connection.settings_dict["CONN_MAX_AGE"] == 0
                if must_close or not _is_usable(connection):
                    connection.close()
            if connection.execute_wrappers != execute_wrappers:
                connection.execute_wrappers[:] = execute_wrappers
        self.patience = IDLE_TIME
        self._idle_since = time.monotonic()

    def close_idle(self) -> None:
        """Close connections that were idle for too long."""
        idle_for = time.monotonic() - self._idle_since
        seconds_left = []
        for connection in self.opened:
            if connection.connection is not None:
                longest_idle_time = LONGEST_IDLE_TIME if connection.settings_dict["CONN_MAX_AGE"] != 0 else IDLE_TIME
                if idle_for < longest_idle_time:
                    seconds_left.append(longest_idle_time - idle_for)
                else:
                    connection.close()
        self.patience = min(seconds_left, default=None)

    def throw_away(self) -> None:
        """Close all connections of this thread, whatever their state."""
        for connection in connections.all(initialized_only=True):
            with suppress(Exception):  # if the driver raises, the connection is lost anyway
                _leave_block(connection)

    def _guard(self, connection: BaseDatabaseWrapper) -> None:
        """Make sure that no task is interrupted while the connection is opened, commits or rolls back."""
        connect, commit, rollback = connection.connect, connection.commit, connection.rollback

        def connect_uninterrupted() -> None:
            with self._interrupter.uninterrupted():
                self.opened[connection] = connection.execute_wrappers.copy()
                try:
                    connect()
                except BaseException:
                    connection.close()  # it may be open, if a receiver of connection_created has raised
                    raise
                self.opened[connection] = connection.execute_wrappers.copy()

        def commit_uninterrupted() -> None:
            with self._interrupter.uninterrupted() as shield:
                completes_job = any(is_completion(function) for _, function, *_ in connection.run_on_commit)
                commit()
                if completes_job:
                    shield.ends_with_block = False  # it lasts until `note_completed` has recorded the commit

        def roll_back_uninterrupted() -> None:
            with self._interrupter.uninterrupted():
                rollback()

        vars(connection).update(
            connect=connect_uninterrupted, commit=commit_uninterrupted, rollback=roll_back_uninterrupted
        )


def _leave_block(connection: BaseDatabaseWrapper) -> None:
    """Roll back a transaction that a task left open.

    This resets Django's state first, because within an atomic block `close()` would wait for the end of the block.
    """
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.close()


def _is_usable(connection: BaseDatabaseWrapper) -> bool:
    """Whether the next job can use this connection."""
    settings = connection.settings_dict
    if connection.autocommit != settings["AUTOCOMMIT"] or connection.run_on_commit:
        return False  # the next job must not run on-commit hooks of an interrupted job
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is not None:
        if pgconn.transaction_status != TransactionStatus.IDLE:
            return False  # an interrupted statement may still be running, or a task has sent BEGIN
        if pgconn.pipeline_status != PipelineStatus.OFF:
            return False  # the next job's statements would wait for a pipeline that nobody ends
    if connection.errors_occurred:
        return False  # sending a test statement might wait forever, if the server does not answer
    # CONN_MAX_AGE = 0 is Django's default, and closes the connection after each request. If we closed it after each
    # job, each job would have to open a connection.
    extra_life = 0.0 if settings["CONN_MAX_AGE"] else SHORTEST_LIFE
    return connection.close_at is None or time.monotonic() < connection.close_at + extra_life


def _has_received_nothing(connection: BaseDatabaseWrapper) -> bool:
    """Whether no data has arrived since the last statement. Usually data means that the server ended the session."""
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is None:
        return True
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return not poll.poll(0)

"""The connections that Django keeps for a thread in which jobs run.

Invariant: an attempt meets no connection that another one has left half open, in a transaction or in the middle of a
statement, and none that the server is known to have closed.
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

from ..tasks.context import is_completion
from .interruption import Interrupter

SHORTEST_LIFE = 60.0
"""Seconds for which a thread keeps a connection between jobs where the project's CONN_MAX_AGE is 0."""

REST = 0.1
"""Seconds after a job for which its connections are taken to be as it has left them."""

IDLE_TIME = 1.0
"""Seconds without a job after which a thread closes a connection where CONN_MAX_AGE is 0."""

LONGEST_IDLE_TIME = 60.0
"""The same where it is not 0: what lies between us and the server may forget a connection on which nothing comes."""


class _Here(threading.local):
    """What a thread that runs jobs has."""

    connections: "ThreadConnections | None" = None


_here = _Here()


def _adopt(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Have a connection watched whose alias the project has made up since the thread began."""
    if _here.connections is not None:
        _here.connections.adopt(connection)


connection_created.connect(_adopt, dispatch_uid="django_skipqueue.execution.thread_connections")


class ThreadConnections:
    """Made in its thread, and used there alone.

    They are outside the project's pool: a thread keeps its connections anyway, and a pool loses one that is interrupted
    on its way to the thread.
    """

    def __init__(self, interrupter: Interrupter | None = None) -> None:
        self.opened: dict[BaseDatabaseWrapper, list[Any]] = {}
        """Those that were opened once, or are being opened, with the execute_wrappers that are their own.

        To ask Django for the thread's connections costs more than all else that the worker does for a job. A thread
        whose tasks use no database has none.
        """
        self.patience: float | None = None
        """Seconds after which a thread without a job is to call `close_idle`; `None`: never."""
        self._interrupter = interrupter or Interrupter()
        self._idle_since = 0.0
        connections.close_all()
        for alias in connections:
            connections[alias] = connection = connections.create_connection(alias)
            _leave_pool(connection)
            self._guard(connection)
        _here.connections = self

    def adopt(self, connection: BaseDatabaseWrapper) -> None:
        """Note one that was opened, if it is not noted already."""
        if connection not in self.opened:
            self.opened[connection] = connection.execute_wrappers.copy()
            self._guard(connection)

    def check(self) -> None:
        """Before a job: close what is too old or was closed by the server, as Django does before a request.

        With CONN_HEALTH_CHECKS, the first statement of the job asks the server. Raises nothing: the job is taken.
        """
        has_rested = time.monotonic() - self._idle_since > REST
        for connection in self.opened:
            if connection.connection is not None and not connection.in_atomic_block:
                vars(connection)["health_check_done"] = False
                if has_rested and not (_is_good(connection) and _is_silent(connection)):
                    with suppress(Exception):
                        connection.close()

    def tidy(self, *, failed: bool = False) -> None:
        """After a job: close what broke, grew too old, or was left in a transaction; keep the others.

        Where CONN_MAX_AGE is 0, what a task has set for its session does not outlive its failure.
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
        """Close what need not be kept any longer by a thread that has no job."""
        idle_for = time.monotonic() - self._idle_since
        kept = []
        for connection in self.opened:
            if connection.connection is not None:
                left = _idle_time(connection) - idle_for
                if left > 0:
                    kept.append(left)
                else:
                    connection.close()
        self.patience = min(kept, default=None)

    def throw_away(self) -> None:
        """Close all that the thread has, noted or not, whatever state they are in."""
        for connection in connections.all(initialized_only=True):
            with suppress(Exception):  # a driver that raises has not kept its connection either
                _leave_block(connection)

    def _guard(self, connection: BaseDatabaseWrapper) -> None:
        """Have nothing interrupted where it is opened, commits or rolls back."""
        connect, commit, rollback = connection.connect, connection.commit, connection.rollback

        def connect_wholly() -> None:
            with self._interrupter.uninterrupted():
                self.opened[connection] = connection.execute_wrappers.copy()
                try:
                    connect()
                except BaseException:
                    connection.close()  # it may be open, and lack what a receiver of connection_created would have set
                    raise
                self.opened[connection] = connection.execute_wrappers.copy()

        def commit_and_report() -> None:
            with self._interrupter.uninterrupted() as shield:
                completes = any(is_completion(hook[1]) for hook in connection.run_on_commit)
                commit()
                if completes:
                    shield.is_up = False  # until that hook is called: before that, nobody knows of the commit

        def roll_back_wholly() -> None:
            with self._interrupter.uninterrupted():
                rollback()

        vars(connection).update(connect=connect_wholly, commit=commit_and_report, rollback=roll_back_wholly)


def _leave_pool(connection: BaseDatabaseWrapper) -> None:
    options = connection.settings_dict.get("OPTIONS", {})
    if "pool" in options:
        others = {key: value for key, value in options.items() if key != "pool"}
        connection.settings_dict = {**connection.settings_dict, "OPTIONS": others}


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
    if connection.autocommit != settings["AUTOCOMMIT"] or connection.run_on_commit:
        return False  # hooks that were interrupted are not for the next job
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is not None:
        if pgconn.transaction_status != TransactionStatus.IDLE:
            return False  # an interrupted statement may still be under way, or a task has typed BEGIN
        if pgconn.pipeline_status != PipelineStatus.OFF:
            return False  # what the next job sends would wait for the end of a pipeline that nobody ends
    if connection.errors_occurred:
        return False  # without asking the server: where it does not answer, the job would never come out
    # CONN_MAX_AGE = 0, Django's default, means "until the end of the request": here, a new connection for each job.
    kept_anyway = 0.0 if settings["CONN_MAX_AGE"] else SHORTEST_LIFE
    return connection.close_at is None or time.monotonic() < connection.close_at + kept_anyway


def _is_silent(connection: BaseDatabaseWrapper) -> bool:
    """Whether nothing has come since the last statement: it would be the end of the session, as a rule."""
    pgconn = getattr(connection.connection, "pgconn", None)
    if pgconn is None:
        return True
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def _idle_time(connection: BaseDatabaseWrapper) -> float:
    return LONGEST_IDLE_TIME if connection.settings_dict["CONN_MAX_AGE"] != 0 else IDLE_TIME

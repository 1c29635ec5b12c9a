"""Stop waiting for a server that has gone silent: it hangs, or the network loses all packets without an error.

If the server is silent for some seconds, we open a second session. Only if the second session gets no answer either do
we stop waiting, because a server may also be silent while it works on a statement, or waits for a lock. TCP timeouts do
not help, because the kernel of a hanging server still acknowledges packets.
"""

import selectors
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import PipelineStatus, TransactionStatus

T = TypeVar("T")

PsycopgConnection = psycopg.Connection[Any]

SILENT_SECONDS = 3.0
"""Seconds to wait for a silent server, before a second session tests whether the server still answers."""

CONNECT_TIMEOUT = 3
"""Seconds to wait for a connection, unless the project's OPTIONS have a `connect_timeout`."""

IDLE_SESSION_SECONDS = 1.0
"""If a server has sent nothing on a session for more than this many seconds, the session is tested before it is
used."""

_heard_at: WeakKeyDictionary[PsycopgConnection, float] = WeakKeyDictionary()
"""When the server has last sent something on each session, by this process's monotonic clock."""


def connect(connection: BaseDatabaseWrapper) -> None:
    """Open the connection with a short timeout, because libpq may wait for minutes. Raises `OperationalError`."""
    original = connection.settings_dict
    options = {"connect_timeout": CONNECT_TIMEOUT, **original.get("OPTIONS", {})}
    connection.settings_dict = {**original, "OPTIONS": options}
    try:
        connection.ensure_connection()
    finally:
        connection.settings_dict = original
    _heard_at[connection.connection] = time.monotonic()


def answers(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server of this open connection still answers. If it does not, closes the connection.

    The server is tested only if it has sent nothing for a second, and if no transaction is open.
    """
    session = connection.connection
    if time.monotonic() - _heard_at.get(session, 0.0) <= IDLE_SESSION_SECONDS or not _can_be_tested(session):
        return True
    if not session_answers(session):
        connection.close()
        return False
    _heard_at[session] = time.monotonic()
    return True


@contextmanager
def ended_by_silence(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Within this block, a statement raises `OperationalError` if its server no longer answers.

    Then we do not know whether the server has executed the statement, or will execute it later. The connection is
    closed.
    """
    if connection.connection is None:
        connect(connection)
    session = connection.connection
    try:
        with _watched(session, lambda: answers_new_session(connection, session)):
            yield
        _heard_at[session] = time.monotonic()
    finally:
        if session.closed:
            connection.close()  # tells Django that the transaction has ended


def _can_be_tested(session: PsycopgConnection) -> bool:
    is_idle = session.pgconn.transaction_status == TransactionStatus.IDLE
    return is_idle and session.pgconn.pipeline_status == PipelineStatus.OFF and session.autocommit


def session_answers(session: PsycopgConnection) -> bool:
    try:
        with _watched(session, lambda: False):  # closes the session as soon as the server is silent
            session.execute("")
    except psycopg.OperationalError:
        return False
    return True


def answers_new_session(connection: BaseDatabaseWrapper, session: PsycopgConnection) -> bool:
    """Whether the server of a session answers on a new session. Refusing the new session does not count as an answer.

    The new session connects to the address of this server, because another server may now have its host name.
    """
    info = session.info
    address = {"host": info.host, "hostaddr": info.hostaddr, "port": info.port, "target_session_attrs": "any"}
    options = {"connect_timeout": CONNECT_TIMEOUT, **connection.get_connection_params(), **address, "autocommit": True}
    try:
        with closing(psycopg.connect(**options)) as new_session:
            return session_answers(new_session)
    except psycopg.OperationalError:
        return False


@contextmanager
def _watched(session: PsycopgConnection, still_answers: Callable[[], bool]) -> Iterator[None]:
    """Within this block, call `still_answers` when the server is silent. If it returns False, close the session."""

    def wait(generator: Any, *args: Any, **options: Any) -> Any:
        return type(session).wait(session, _with_silence_check(generator, session, still_answers), *args, **options)

    vars(session)["wait"] = wait
    try:
        yield
    finally:
        vars(session).pop("wait", None)


def _with_silence_check(
    generator: Generator[Any, Any, T], session: PsycopgConnection, still_answers: Callable[[], bool]
) -> Generator[Any, Any, T]:
    """Wrap a generator by which psycopg waits for a socket. Wait here first, so that psycopg finds the socket ready."""
    try:
        socket_event = next(generator)
        while True:
            while not _is_ready(session, socket_event):
                if not still_answers():
                    session.close()
                    raise psycopg.OperationalError(SILENT)
            socket_event = generator.send((yield socket_event))
    except StopIteration as end:
        result: T = end.value
        return result


def _is_ready(session: PsycopgConnection, socket_event: int) -> bool:
    """Wait until the socket can be read or written. Returns False if it cannot be for `SILENT_SECONDS`."""
    with SELECTOR() as selector:
        selector.register(session.pgconn.socket, socket_event)
        return bool(selector.select(SILENT_SECONDS))


SELECTOR: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""A selector class. `PollSelector`, where the platform has it, is created without a system call."""

SILENT = (
    "The server sends nothing any more, and a new connection to it gets no answer. Nobody knows whether it executes "
    "the statement."
)


AVOIDED_SECONDS = 5.0
"""For how many seconds a database that could not be reached is not tried again, because each try may take long."""

avoided_until: dict[str, float] = {}
"""By the alias of a database that could not be reached: when to try it again, by the monotonic clock."""


def can_be_reached(alias: str) -> bool:
    """Whether this thread has a working connection to the database, or can open one.

    An open connection is tested only if its server has sent nothing for a second.
    """
    connection = connections[alias]
    if connection.in_atomic_block:
        return True
    now = time.monotonic()
    if avoided_until.get(alias, 0.0) > now:
        return False
    try:
        if connection.connection is not None and _was_closed(connection.connection):
            connection.close()
        if connection.connection is None:
            connect(connection)
        is_reachable = answers(connection)
    except OperationalError:
        is_reachable = False
    if not is_reachable:
        avoided_until[alias] = time.monotonic() + AVOIDED_SECONDS
    return is_reachable


def _was_closed(session: psycopg.Connection) -> bool:
    """Whether the server has ended the session, for example because it stops. Reads received data without waiting."""
    if session.closed:
        return True
    try:
        session.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False

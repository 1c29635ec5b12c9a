"""End the wait for a server that sends nothing any more: it hangs, or the network loses all packets without an error.

Invariant: a wait ends only if a new session gets no answer either. A server that works on a statement, or waits for a
lock, is waited for. The timeouts of TCP do not help: the kernel of a server that hangs acknowledges what it receives.
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
"""Seconds to wait for a server that sends nothing, before a new session asks whether the server is there."""

CONNECT_TIMEOUT = 3
"""Seconds to wait for a connection, unless the project's OPTIONS have a `connect_timeout`."""

IDLE_SESSION_SECONDS = 1.0
"""Seconds: a session whose server has sent nothing for longer is tried before it is used."""

_heard_at: WeakKeyDictionary[PsycopgConnection, float] = WeakKeyDictionary()
"""By session: when its server has last sent something, by the monotonic clock."""


def connect(connection: BaseDatabaseWrapper) -> None:
    """Open the connection within a limited time: libpq alone waits for minutes. Raises `OperationalError`."""
    given = connection.settings_dict
    connection.settings_dict = {**given, "OPTIONS": {"connect_timeout": CONNECT_TIMEOUT, **given.get("OPTIONS", {})}}
    try:
        connection.ensure_connection()
    finally:
        connection.settings_dict = given
    _heard_at[connection.connection] = time.monotonic()


def answers(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server of this open connection answers. If it does not, the connection is closed.

    Asks only if the server has sent nothing for a second, and if no transaction is open.
    """
    session = connection.connection
    if time.monotonic() - _heard_at.get(session, 0.0) <= IDLE_SESSION_SECONDS or not _can_be_asked(session):
        return True
    if not session_answers(session):
        connection.close()
        return False
    _heard_at[session] = time.monotonic()
    return True


@contextmanager
def ended_by_silence(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Within this block, a statement whose server is silent, and answers no new session, raises `OperationalError`.

    Nobody knows then whether the server has executed the statement, or executes it later. The connection is closed.
    """
    if connection.connection is None:
        connect(connection)
    session = connection.connection
    try:
        with _watched(session, lambda: answers_again(connection, session)):
            yield
        _heard_at[session] = time.monotonic()
    finally:
        if session.closed:
            connection.close()  # tells Django that the transaction has ended


def _can_be_asked(session: PsycopgConnection) -> bool:
    is_idle = session.pgconn.transaction_status == TransactionStatus.IDLE
    return is_idle and session.pgconn.pipeline_status == PipelineStatus.OFF and session.autocommit


def session_answers(session: PsycopgConnection) -> bool:
    try:
        with _watched(session, lambda: False):
            session.execute("")
    except psycopg.OperationalError:
        return False
    return True


def answers_again(connection: BaseDatabaseWrapper, session: PsycopgConnection) -> bool:
    """Whether the server of a session answers a new session. A server that refuses it has not answered.

    The new session goes to the address of this server: under its name another server may have taken over.
    """
    info = session.info
    here = {"host": info.host, "hostaddr": info.hostaddr, "port": info.port, "target_session_attrs": "any"}
    options = {"connect_timeout": CONNECT_TIMEOUT, **connection.get_connection_params(), **here, "autocommit": True}
    try:
        with closing(psycopg.connect(**options)) as other:
            return session_answers(other)
    except psycopg.OperationalError:
        return False


@contextmanager
def _watched(session: PsycopgConnection, is_there: Callable[[], bool]) -> Iterator[None]:
    """Within this block, ask `is_there` whether to wait for a silent server. If not, the session is closed."""

    def wait(waiting: Any, *args: Any, **options: Any) -> Any:
        return type(session).wait(session, _with_a_look(waiting, session, is_there), *args, **options)

    vars(session)["wait"] = wait
    try:
        yield
    finally:
        vars(session).pop("wait", None)


def _with_a_look(
    waiting: Generator[Any, Any, T], session: PsycopgConnection, is_there: Callable[[], bool]
) -> Generator[Any, Any, T]:
    """Wrap the generator of a wait of psycopg's: wait here, so that psycopg finds the socket ready."""
    try:
        wanted = next(waiting)
        while True:
            while not _is_ready(session, wanted):
                if not is_there():
                    session.close()
                    raise psycopg.OperationalError(SILENT)
            wanted = waiting.send((yield wanted))
    except StopIteration as end:
        result: T = end.value
        return result


def _is_ready(session: PsycopgConnection, wanted: int) -> bool:
    """Wait until the socket can be read or written, as `wanted`. False: it could not for `SILENT_SECONDS`."""
    with SELECTOR() as selector:
        selector.register(session.pgconn.socket, wanted)
        return bool(selector.select(SILENT_SECONDS))


SELECTOR: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""A selector that needs no system call to be created, on a platform that has one."""

SILENT = (
    "The server sends nothing any more, and a new connection to it gets no answer. Nobody knows whether it executes "
    "the statement."
)


AVOIDED_SECONDS = 5.0
"""Seconds for which a database that could not be reached is not tried: each try may take its `connect_timeout`."""

avoided_until: dict[str, float] = {}


def can_be_reached(alias: str) -> bool:
    """Whether this thread has a connection to the database whose server answers, or can open one.

    Over an open connection it sends something only if the server has sent nothing for a second.
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
        is_there = answers(connection)
    except OperationalError:
        is_there = False
    if not is_there:
        avoided_until[alias] = time.monotonic() + AVOIDED_SECONDS
    return is_there


def _was_closed(raw: psycopg.Connection) -> bool:
    """Whether the server has ended the session, for example to stop. Reads what has arrived, and does not wait."""
    if raw.closed:
        return True
    try:
        raw.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False

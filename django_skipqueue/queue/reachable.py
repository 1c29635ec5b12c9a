"""Whether a database can be reached. One that could not be is not tried again for a while.

Invariant: a database whose transaction is open counts as reachable: the caller's data is in it.
"""

import time

import psycopg
from django.db import OperationalError, connections

from .silence import answers, connect

AVOIDED_SECONDS = 5.0
"""For so long a database is left out that could not be reached: each try may take as long as its `connect_timeout`."""

_avoided_until: dict[str, float] = {}


def can_be_reached(alias: str) -> bool:
    """Whether this thread has a connection to the database whose server answers, or can open one.

    Over an open connection it sends something only if the server has sent nothing for a second.
    """
    connection = connections[alias]
    if connection.in_atomic_block:
        return True
    now = time.monotonic()
    if _avoided_until.get(alias, 0.0) > now:
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
        _avoided_until[alias] = time.monotonic() + AVOIDED_SECONDS
    return is_there


def _was_closed(raw: psycopg.Connection) -> bool:
    """Whether the server has ended the session, as a server that stops does. Reads what has arrived, and waits not."""
    if raw.closed:
        return True
    try:
        raw.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False

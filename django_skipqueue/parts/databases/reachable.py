"""Chooses one of several databases in turn, and leaves out those that cannot be reached.

Invariant: a database whose transaction is open is never left out: the caller's data is in it.
"""

import itertools
import random
import time
from collections.abc import Sequence

import psycopg
from django.db import OperationalError, connections

from ...queue.silence import answers, connect

AVOIDED_SECONDS = 5.0
"""For so long a database is left out that could not be reached: each try may take as long as its `connect_timeout`."""

_turns = itertools.count(random.randrange(1_000_000))  # noqa: S311 (spreads load: processes do not begin alike)
_avoided_until: dict[str, float] = {}


def in_turn(aliases: Sequence[str]) -> str:
    """The next of these databases that can be reached. If none can, one of them: its error says why.

    If the caller has a transaction open in one of them, and in no other, it is that one: the job commits with it.
    """
    if here := _with_transaction(aliases):
        return here
    candidates = _next_first(aliases)
    return next((alias for alias in candidates if can_be_reached(alias)), candidates[0])


def reachable_in_turn(aliases: Sequence[str]) -> list[str]:
    """The databases that can be reached, among these, the next one first; or one alone, as of `in_turn`."""
    if here := _with_transaction(aliases):
        return [here]
    candidates = _next_first(aliases)
    return [alias for alias in candidates if can_be_reached(alias)] or candidates[:1]


def _with_transaction(aliases: Sequence[str]) -> str | None:
    found = [alias for alias in aliases if connections[alias].in_atomic_block]
    return found[0] if len(found) == 1 else None


def _next_first(aliases: Sequence[str]) -> list[str]:
    """All of them, the next one first. The others are shuffled: so they share the jobs of one that is down evenly."""
    first = next(_turns) % len(aliases)
    return [aliases[first], *random.sample([*aliases[:first], *aliases[first + 1 :]], len(aliases) - 1)]


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

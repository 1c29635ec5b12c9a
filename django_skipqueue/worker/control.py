"""The one connection of a control loop: in autocommit, outside the project's pool, reopened with back-off when it
breaks.

Invariant: the verbs, called in the thread that opened it, use this connection and no other.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, connections

from .. import logs
from ..databases import own_connection
from ..models import Job

FIRST_DELAY, LONGEST_DELAY = 0.25, 10.0


class ControlConnection:
    """Replaces Django's connection of this thread to the queue's database."""

    def __init__(self, database: str, *, who: str) -> None:
        self.database = database
        self.retry_in = 0.0
        self._listening = False
        self._heard: set[str] = set()
        self._who = who
        self._failures = 0
        connections[database] = own_connection(database)
        self._wrapper: Any = connections[database]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Try statements. A database error closes the connection and is not raised: `retry_in` says when to go on."""
        self.retry_in = 0.0
        try:
            yield
        except Error as error:
            self.retry_in = self._next_delay()
            logs.database_lost(self._who, error, self.retry_in)
            self.close()
        else:
            if self._failures:
                logs.database_back(self._who)
            self._failures = 0

    def listen(self) -> None:
        """Have PostgreSQL say when a queue gets jobs. Does nothing if it does already."""
        if not self._listening:
            Job.objects.using(self.database).listen()
            self._wrapper.connection.add_notify_handler(lambda heard: self._heard.add(heard.payload))
            self._listening = True

    def notified(self) -> set[str]:
        """The queues that got jobs since the last call, also while statements ran. Does not wait."""
        with self._wrapper.wrap_database_errors:
            pgconn = self._wrapper.connection.pgconn
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                self._heard.add(notification.extra.decode())
        heard, self._heard = self._heard, set()
        return heard

    def fileno(self) -> int | None:
        """The socket to wait on; `None` while there is none."""
        raw = self._wrapper.connection
        return None if raw is None or raw.closed else raw.fileno()

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        self._listening = False
        self._wrapper.close()

    def _next_delay(self) -> float:
        self._failures += 1
        longest = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self._failures, 10))
        return random.uniform(longest / 2, longest)  # noqa: S311 (spreads load, guards nothing)

"""Read several databases at the same time, each in its own thread, so that all take as long as the slowest.

The caller never waits longer than the given time, whatever a network or a server does, and each thread closes what it
has opened. If the caller has an open transaction in a database, the caller's own thread reads this database, because no
other connection sees what the transaction has written.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Generic, TypeVar

from django.db import Error, connections
from django.utils import translation

from ..conf import using_database
from ..queue.silence import can_be_reached
from ..queue.store import Store

T = TypeVar("T")


def read_at_once(
    aliases: Sequence[str], read: Callable[[Store], T], *, connect_seconds: float, seconds: float
) -> dict[str, T | None]:
    """Return the result of `read` for each alias; `None` if a database fails or does not answer in time.

    Each database must be reached within `connect_seconds`, and `read` must end within `seconds`, which includes
    connecting. `read` must set timeouts for its statements, because the server continues a statement even if nobody
    waits for its result.
    """
    began = time.monotonic()
    reads = {alias: _Read(alias, read) for alias in aliases}
    in_threads = [
        database_read for database_read in reads.values() if not connections[database_read.alias].in_atomic_block
    ]
    for database_read in in_threads:
        Thread(target=database_read.run, name=f"read {database_read.alias}", daemon=True).start()
    for database_read in reads.values():
        if database_read not in in_threads:
            database_read.run_here()
    return {
        alias: database_read.result(began + connect_seconds, began + seconds) for alias, database_read in reads.items()
    }


class _Read(Generic[T]):
    """Reads one database: `run` in a thread of its own, `run_here` in the caller's thread."""

    def __init__(self, alias: str, read: Callable[[Store], T]) -> None:
        self.alias = alias
        self._read = read
        self._language = translation.get_language()  # the language of the caller's thread
        self._result: T | None = None
        self._bug: BaseException | None = None
        self._is_reached, self._has_ended = Event(), Event()
        self._socket: socket.socket | None = None
        self._is_given_up = False

    def run(self) -> None:
        try:
            if can_be_reached(self.alias):
                # Copy the descriptor. libpq cannot close the copy, so its number is not reused for another file.
                self._socket = socket.socket(fileno=os.dup(connections[self.alias].connection.fileno()))
                self._is_reached.set()
                if not self._is_given_up:
                    with translation.override(self._language):
                        self._answer()
        except BaseException as bug:
            self._bug = bug
        finally:
            connections.close_all()
            if self._socket is not None:
                self._socket.close()
            self._end()

    def run_here(self) -> None:
        self._answer()
        self._end()

    def result(self, reached_by: float, ended_by: float) -> T | None:
        """Wait for the result. Returns `None` once one of the two deadlines, in monotonic time, has passed."""
        deadlines = ((self._is_reached, reached_by), (self._has_ended, ended_by))
        if not all(event.wait(max(0.0, deadline - time.monotonic())) for event, deadline in deadlines):
            self._give_up()
            return None
        if self._bug is not None:
            raise self._bug
        return self._result

    def _answer(self) -> None:
        with suppress(Error), using_database(self.alias):
            self._result = self._read(Store(self.alias))

    def _end(self) -> None:
        self._has_ended.set()
        self._is_reached.set()

    def _give_up(self) -> None:
        """Make the thread stop waiting, because its server may never answer."""
        self._is_given_up = True
        with suppress(OSError):  # the thread may have closed the socket
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

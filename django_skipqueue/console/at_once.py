"""Reads several databases at once, each in a thread of its own: all of them take as long as the slowest database.

Invariant: the caller waits no longer than it says, whatever a network or a server does, and each thread closes what it
has opened. If the caller has a transaction open in a database, the caller's thread reads this database: no other
connection sees what the transaction has written.
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
    """The results of `read` by the aliases; `None` for a database that does not answer in time, or with an error.

    Each database must be reached within `connect_seconds`, and `read` must end within `seconds`, the connect included.
    `read` sets the timeouts of its statements: the server goes on with a statement when nobody waits for its result.
    """
    began = time.monotonic()
    reads = {alias: _Read(alias, read) for alias in aliases}
    apart = [each for each in reads.values() if not connections[each.alias].in_atomic_block]
    for each in apart:
        Thread(target=each.run, name=f"read {each.alias}", daemon=True).start()
    for each in reads.values():
        if each not in apart:
            each.run_here()
    return {alias: each.result(began + connect_seconds, began + seconds) for alias, each in reads.items()}


class _Read(Generic[T]):
    """One database. Its thread calls `run`, or the caller's thread `run_here`; the caller's thread calls `result`."""

    def __init__(self, alias: str, read: Callable[[Store], T]) -> None:
        self.alias = alias
        self._read = read
        self._language = translation.get_language()  # of the caller's thread
        self._found: T | None = None
        self._bug: BaseException | None = None
        self._is_reached, self._has_ended = Event(), Event()
        self._socket: socket.socket | None = None
        self._is_given_up = False

    def run(self) -> None:
        try:
            if can_be_reached(self.alias):
                # a copy of the descriptor: libpq cannot close it, so its number cannot become another file's
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
        """Wait for what was read. Returns `None` when one of the two times, by the monotonic clock, is over."""
        steps = ((self._is_reached, reached_by), (self._has_ended, ended_by))
        if not all(event.wait(max(0.0, by - time.monotonic())) for event, by in steps):
            self._give_up()
            return None
        if self._bug is not None:
            raise self._bug
        return self._found

    def _answer(self) -> None:
        with suppress(Error), using_database(self.alias):
            self._found = self._read(Store(self.alias))

    def _end(self) -> None:
        self._has_ended.set()
        self._is_reached.set()

    def _give_up(self) -> None:
        """End the wait of the thread: its server may never answer."""
        self._is_given_up = True
        with suppress(OSError):  # the thread has closed it
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

"""Reads from several databases at once, each in a thread of its own: the slowest one costs its time, not all in turn.

Invariant: the caller waits no longer than it says, whatever a network or a server does, and what a thread has opened is
closed. A database whose transaction is open is read in the caller's thread: what that has written is seen nowhere else.
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

    `connect_seconds` are those to reach a database, and `seconds` those for all of it. `read` limits its statements
    itself: one whose result nobody waits for any more goes on in the server until then.
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
                # under a number of its own, which libpq cannot close and use again
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
        """What was read, once it is there; `None` when one of these times, by the monotonic clock, is over."""
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
        """Have the thread end: it may wait for a server that is never heard of again."""
        self._is_given_up = True
        with suppress(OSError):  # the thread has closed it
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

"""Sends events to the project's signal receivers, in a thread of its own.

Invariant: a receiver that is slow or stuck holds up other receivers, and nothing else.
"""

import queue
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import connections
from django.dispatch import Signal

from ..signals import announce
from .executor import close_unusable_connections


class Event(NamedTuple):
    """A signal to send."""

    signal: Signal
    sender: str
    values: dict[str, Any]


class Announcer:
    """Sends what it is given, in order. Started by the first event that somebody listens to."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given = 0  # written by the caller's thread alone
        self._sent = 0  # written by the announcer's thread alone

    def announce(self, events: Iterable[Event]) -> None:
        """Send these soon. Returns at once; an event without receivers costs next to nothing."""
        heard = [event for event in events if event.signal.has_listeners(event.sender)]
        if not heard:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skipqueue-events", daemon=True)
            self._thread.start()
        self._given += len(heard)
        self._waiting.put(heard)

    @property
    def backlog(self) -> int:
        """How many events wait for their receivers."""
        return self._given - self._sent

    def stop(self, timeout: float) -> None:
        """Send what is waiting, for `timeout` seconds at most, and end the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout)
            self._thread = None

    def _run(self) -> None:
        try:
            while (events := self._waiting.get()) is not None:
                for signal, sender, values in events:
                    announce(signal, sender, **values)
                self._sent += len(events)
                close_unusable_connections()
        finally:
            connections.close_all()

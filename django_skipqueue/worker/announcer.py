"""Tells the project what happened: log lines, and signals to its receivers, in a thread of its own.

Invariant: a receiver that is slow or stuck holds up other receivers, and nothing else.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.dispatch import Signal

from .. import logs
from ..records import Attempt
from ..signals import announce, job_completed
from .connections import ThreadConnections

Outcomes = Mapping[Signal, list[Attempt]]
"""The attempts of one batch, by the event that each of them is."""


class Announcer:
    """Does what it is told, in order. Its thread is started by the first event that somebody wants to know of."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given = 0  # written by the caller's thread alone
        self._done = 0  # written by the announcer's thread alone

    @property
    def backlog(self) -> int:
        """How many events wait to be told."""
        return self._given - self._done

    def event(self, signal: Signal, sender: str, **values: Any) -> None:
        """Send one signal soon. Returns at once."""
        if signal.has_listeners(sender):
            self._put(1, partial(announce, signal, sender, **values))

    def outcomes(self, outcomes: Outcomes) -> None:
        """Tell of a batch soon. Returns at once; what nobody wants to know costs nothing."""
        wanted = {
            signal: attempts
            for signal, attempts in outcomes.items()
            if signal.receivers or (signal is job_completed and logs.wants_completed())
        }
        if wanted:
            self._put(sum(map(len, wanted.values())), partial(_tell, wanted))

    def flush(self, timeout: float) -> None:
        """Tell what is waiting, for `timeout` seconds at most."""
        if self._thread is not None:
            told = threading.Event()
            self._put(0, told.set)
            told.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Tell what is waiting, for `timeout` seconds at most, and end the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout)
            self._thread = None

    def _put(self, count: int, tell: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skipqueue-announcer", daemon=True)
            self._thread.start()
        self._given += count
        self._waiting.put((count, tell))

    def _run(self) -> None:
        connections = ThreadConnections()
        try:
            while (work := self._waiting.get()) is not None:
                count, tell = work
                connections.check()
                tell()
                self._done += count
                connections.tidy()
        finally:
            connections.throw_away()


def _tell(outcomes: Outcomes) -> None:
    for signal, attempts in outcomes.items():
        if signal is job_completed:
            with contextlib.suppress(BaseException):  # a logging filter or handler of the project's
                logs.completed(attempts)
        if signal.receivers:
            for attempt in attempts:
                announce(signal, attempt.job.task, attempt=attempt)

"""Tells the project what happened: log lines, and signals to its receivers, in a thread of its own.

Invariant: a receiver that is slow or stuck holds up other receivers, and nothing else.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.dispatch import Signal

from ..events import logs
from ..execution.connections import ThreadConnections
from ..execution.interruption import stacks
from ..signals import emit, job_completed
from ..values.records import Attempt

HANGS_AFTER = 60.0
"""Seconds in one receiver after which it is taken to hang."""

MOST_WAITING = 10_000
"""Events that may wait before the worker claims no more."""

NEVER = float("inf")

Outcomes = Mapping[Signal, list[Attempt]]
"""The attempts of one batch, by the event that each of them is."""


class EventDispatcher:
    """Does what it is told, in order. Its thread is started by the first event that somebody wants to know of."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given = 0  # written by the caller's thread alone
        self._done = 0  # written by the dispatcher's thread alone
        self._began_at = NEVER  # when its thread began what it does now; by that thread alone

    @property
    def backlog(self) -> int:
        """How many events wait to be told."""
        return self._given - self._done

    @property
    def is_full(self) -> bool:
        """Whether so many wait that no more should come."""
        return self.backlog > MOST_WAITING

    @property
    def hangs_at(self) -> float:
        """When to take a receiver for one that hangs, in monotonic seconds."""
        return self._began_at + HANGS_AFTER

    def stack(self) -> str:
        """Where its thread is, in a line."""
        return "".join(stacks(self._thread)) if self._thread else ""

    def event(self, signal: Signal, sender: str, **values: Any) -> None:
        """Send one signal soon. Returns at once."""
        if signal.has_listeners(sender):
            self._put(1, partial(emit, signal, sender, **values))

    def outcomes(self, outcomes: Outcomes) -> None:
        """Tell of a batch soon. Returns at once; what nobody wants to know costs nothing."""
        wanted = {
            signal: attempts
            for signal, attempts in outcomes.items()
            if signal.receivers or (signal is job_completed and logs.wants_completed())
        }
        if wanted:
            self._put(sum(map(len, wanted.values())), partial(self._send_outcomes, wanted))

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

    def _put(self, count: int, send: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skipqueue-dispatcher", daemon=True)
            self._thread.start()
        self._given += count
        self._waiting.put((count, send))

    def _run(self) -> None:
        connections = ThreadConnections()
        try:
            while (work := self._waiting.get()) is not None:
                count, send = work
                self._began_at = time.monotonic()
                connections.check()
                send()
                self._done += count
                try:
                    connections.tidy()
                except Exception:  # a driver that raises must not end the thread that tells of all later events
                    connections.throw_away()
                    connections = ThreadConnections()
                self._began_at = NEVER
        finally:
            self._began_at = NEVER
            connections.throw_away()

    def _send_outcomes(self, outcomes: Outcomes) -> None:
        for signal, attempts in outcomes.items():
            if signal is job_completed:
                with contextlib.suppress(BaseException):  # a logging filter or handler of the project's
                    logs.completed(attempts)
            if signal.receivers:
                for attempt in attempts:
                    self._began_at = time.monotonic()
                    emit(signal, attempt.job.task, attempt=attempt)

"""The sinks, which handle events. One sink writes log lines, and another sends Django signals.

If a sink raises an exception, the exception is logged. It reaches neither the other sinks nor the sender of the event.

To add a sink, write a class with the two methods of `Sink`, and add an instance to `SINKS`.
"""

import contextlib
from collections.abc import Callable
from typing import Protocol

from .. import signals
from ..exceptions import JobInterrupted
from . import log_context
from .events import Event
from .logs import logger

Alive = Callable[[], None]

Send = Callable[[Event], None]
"""A function that gives an event to the sinks: `send` does it in the caller's thread, `EventDispatcher.send` in
another."""


class Sink(Protocol):
    """Handles events, in the thread that sends them. In a worker, this is the thread of its `EventDispatcher`."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether to give events of this class to the sink. Called before every event, so it must be fast (0.2 µs)."""

    def handle(self, event: Event, alive: Alive) -> None:
        """Process an event.

        alive: a sink must call this function between pieces of work, or else it counts as hanging after a minute.
        """


class LogSink:
    """Makes events write their log lines. An event costs nothing if its level is disabled."""

    def wants(self, kind: type[Event]) -> bool:
        return kind.level is not None and logger.isEnabledFor(kind.level)

    def handle(self, event: Event, alive: Alive) -> None:
        alive()
        with log_context.about(getattr(event, "database", None)):
            event.write_lines()


class SignalSink:
    """Sends events as Django signals. The exception of a receiver is logged, and stops nothing."""

    def wants(self, kind: type[Event]) -> bool:
        return kind.signal is not None and bool(kind.signal.receivers)

    def handle(self, event: Event, alive: Alive) -> None:
        if event.signal is not None:
            for sender, values in event.signal_arguments():
                alive()
                signals.emit(event.signal, sender, **values)


SINKS: list[Sink] = [LogSink(), SignalSink()]
"""The sinks, in the order in which they get each event."""


def wanted(event_class: type[Event]) -> bool:
    """Whether any sink handles events of this class at the moment."""
    for sink in SINKS:
        try:
            if sink.wants(event_class):
                return True
        except JobInterrupted:
            raise
        except BaseException as error:
            _log_broken(sink, error)
    return False


def send(event: Event, alive: Alive = lambda: None) -> None:
    """Give the event to the sinks that want it, in this thread.

    alive: the sinks call it while they work. An `EventDispatcher` uses it to notice that a sink hangs.
    Raises only `JobInterrupted`, which interrupts the attempt that runs in this thread.
    """
    for sink in SINKS:
        try:
            if sink.wants(type(event)):
                sink.handle(event, alive)
        except JobInterrupted:
            raise
        except BaseException as error:
            _log_broken(sink, error)


def _log_broken(sink: Sink, error: BaseException) -> None:
    with contextlib.suppress(BaseException):  # the project's logging may be what raised
        logger.error("The event sink %s raised: %r", type(sink).__name__, error, exc_info=error)

"""The sinks of events: whoever wants to know what happens. Log lines and Django's signals are two of them.

Invariant: a sink that raises is logged, and harms neither the sinks after it nor whoever sends.

A new one is a class with these two methods, and an entry in `SINKS`.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from ..exceptions import JobInterrupted
from .events import Event
from .log_sink import LogSink
from .signal_sink import SignalSink

logger = logging.getLogger("django_skipqueue")

Alive = Callable[[], None]

Send = Callable[[Event], None]
"""How events are sent: here and now by `send`, or by the thread of an `EventDispatcher`."""


class Sink(Protocol):
    """Gets events in the thread of whoever sends them: within a worker, in one that does nothing else."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether to be given events of this kind now. Asked before every event: at most 0.2 µs."""

    def handle(self, event: Event, alive: Alive) -> None:
        """Do what is to be done about an event.

        alive: called between pieces of work. Whoever does not call it for a minute is taken to hang.
        """


SINKS: list[Sink] = [LogSink(), SignalSink()]
"""In the order in which they get each event."""


def wanted(kind: type[Event]) -> bool:
    """Whether any sink wants events of this kind."""
    for sink in SINKS:  # noqa: SIM110 (a generator takes twice as long)
        if sink.wants(kind):
            return True
    return False


def _nobody_watches() -> None:
    """Whoever sends in their own thread waits for as long as it takes."""


def send(event: Event, alive: Alive = _nobody_watches) -> None:
    """Give the event to the sinks that want it, here and now.

    Raises `JobInterrupted` alone, which is meant for the attempt in whose thread it is sent.
    """
    for sink in SINKS:
        if sink.wants(type(event)):
            try:
                sink.handle(event, alive)
            except JobInterrupted:
                raise
            except BaseException as error:
                with contextlib.suppress(BaseException):  # the project's logging may be what raised
                    logger.error("The event sink %s raised: %r", type(sink).__name__, error, exc_info=error)

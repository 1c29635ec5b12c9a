"""Pass on the events of a process. The `EventDispatcher` sends them to sinks; an `Observer` shows them to a part.

A `SettleService` is a part's service that acts on settled jobs.

The `EventDispatcher` sends events in its own thread, so that no code of the project runs in the control loop. A signal
receiver or a sink that is slow or hangs delays only other receivers and sinks.
"""

import contextlib
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ..events import liveness_logs
from ..events.events import AttemptsEnded, Event
from ..events.sinks import Send, send, wanted
from ..exceptions import JobInterrupted
from ..queue.store import Store
from ..values.part import installed_parts
from ..values.records import NEVER, Attempt, ClaimedJob, LeaseRef
from .attempts.connections import ThreadConnections
from .attempts.running_attempt import stacks
from .loop import Periodic, Service

HANGS_AFTER = 60.0
"""A signal receiver that has not returned after this many seconds counts as hanging."""

MOST_EVENTS_WAITING = 10_000
"""If more events than this wait to be sent, the worker claims no more jobs."""


class End:
    """Put into the dispatcher's queue to end its thread."""


class EventDispatcher:
    """Sends events to the sinks in order, in its own thread, which starts with the first event that a sink wants."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]] | End] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end: End | None = None  # the item in `_waiting` that ends the thread, unless an event was sent after it
        self._ending = threading.Lock()  # guards `_end` and `_thread`
        self._queued = 0  # only the caller's thread changes it
        self._delivered = 0  # only the dispatcher's thread changes it
        self._began_at = NEVER  # when the running receiver began; only the dispatcher's thread changes it

    @property
    def backlog(self) -> int:
        """The number of events that wait to be sent."""
        return self._queued - self._delivered

    @property
    def is_full(self) -> bool:
        return self.backlog > MOST_EVENTS_WAITING

    @property
    def hangs_at(self) -> float:
        """The monotonic time from which the running receiver counts as hanging."""
        return self._began_at + HANGS_AFTER

    def stack(self) -> str:
        thread = self._thread
        return "".join(stacks(thread)) if thread else ""

    def send(self, event: Event) -> None:
        """Queue the event for the sinks, if a sink wants it. Returns at once."""
        if wanted(type(event)):
            self._put(event.size, partial(send, event, self._note_alive))

    def flush(self, timeout: float) -> None:
        """Wait until the waiting events are sent, at most `timeout` seconds."""
        if self._thread is not None:
            delivered = threading.Event()
            self._put(0, delivered.set)
            delivered.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Wait until the waiting events are sent, at most `timeout` seconds, and end the thread.

        If the thread hangs in a receiver, it ends when the receiver returns, unless more events were sent meanwhile.
        """
        if (thread := self._thread) is not None:
            self._end = End()
            self._waiting.put(self._end)
            thread.join(timeout)

    def _put(self, count: int, send: Callable[[], None]) -> None:
        with self._ending:
            self._end = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="skipqueue-dispatcher", daemon=True)
                self._thread.start()
        self._queued += count
        self._waiting.put((count, send))

    def _note_alive(self) -> None:
        self._began_at = time.monotonic()

    def _run(self) -> None:
        connections = ThreadConnections()
        try:
            while True:
                item = self._waiting.get()
                if not isinstance(item, End):
                    connections = self._deliver(*item, connections)
                    continue
                with self._ending:
                    if item is self._end:  # no event was sent after it
                        self._thread = None
                        return
        finally:
            connections.throw_away()

    def _deliver(self, count: int, send_it: Callable[[], None], connections: ThreadConnections) -> ThreadConnections:
        self._note_alive()
        connections.check()
        with contextlib.suppress(JobInterrupted):  # if a receiver raises it here, there is no attempt to interrupt
            send_it()
        self._delivered += count
        try:
            connections.tidy()
        except Exception:  # an exception of the driver must not end the thread
            connections.throw_away()
            connections = ThreadConnections()
        self._began_at = NEVER
        return connections


class ReceiverCheck(Service):
    """A service that logs each hanging signal receiver once. All later events wait until this receiver returns."""

    name = "receiver_check"
    loop_handles_errors = False

    def __init__(
        self, dispatcher: EventDispatcher, *, who: str, hint: str, then: Callable[[], object] = lambda: None
    ) -> None:
        """who, hint: the process and the consequence, for the log line. then: called after the line is written."""
        self._dispatcher = dispatcher
        self._who = who
        self._hint = hint
        self._then = then
        self._logged = NEVER  # `hangs_at` of the receiver that was logged last

    @property
    def due_at(self) -> float:
        hangs_at = self._dispatcher.hangs_at
        return NEVER if hangs_at == self._logged else hangs_at

    def run(self, now: float) -> None:
        hangs_at = self._dispatcher.hangs_at
        if hangs_at <= now:
            self._logged = hangs_at
            liveness_logs.receiver_hangs(self._who, self._dispatcher.stack(), self._hint)
            self._then()


class Observer(Protocol):
    """Observes the claims, attempts and events of a process, for a part. Used only by the control loop's thread."""

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Observe a claim of these jobs, in their order."""

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Observe attempts, after the database has accepted or rejected their outcomes."""

    def sent(self, event: Event) -> None:
        """Observe an event of the `Store`, before the event is sent."""


class SettleService(Service):
    """A part's service that acts after jobs are settled. Used only by the control loop's thread."""

    @abstractmethod
    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        """Note that these jobs are settled, each with its batch id. Called only if one of the jobs is in a batch."""


def settle_services(store: Store, *, is_idle: Callable[[], bool] = lambda: False) -> tuple[SettleService, ...]:
    """Make the settle services of all parts. `is_idle` returns whether the process has no jobs to delay."""
    return tuple(service(store, is_idle) for part in installed_parts() for service in part.settle_services)


class Observers:
    """The observers of all parts."""

    def __init__(self) -> None:
        maker_pairs = [maker_pair for part in installed_parts() for maker_pair in part.observers]
        self.all: list[Observer] = [make_observer() for make_observer, _ in maker_pairs]
        self._make_services = [make_service for _, make_service in maker_pairs]

    def services(self, store: Store) -> list[Periodic]:
        """Make the services that store the observations, at intervals and at the end of the process."""
        pairs = zip(self._make_services, self.all, strict=True)
        return [make_service(store, observer) for make_service, observer in pairs]

    def observing(self, send: Send) -> Send:
        """Return a function that shows an event to the observers, and then sends it."""

        def observe_and_send(event: Event) -> None:
            for observer in self.all:
                observer.sent(event)
            send(event)

        return observe_and_send

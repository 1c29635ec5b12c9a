"""Tells what happens in a process: the `EventDispatcher` tells sinks, an `Observer` and a `SettleService` tell parts.

The `EventDispatcher` sends events in a thread of its own, so that no code of the project runs in a control loop.
Invariant: a slow or hanging receiver or sink delays other receivers and sinks, and nothing else.
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
"""Seconds after which a running receiver counts as hanging."""

MOST_EVENTS_WAITING = 10_000
"""Events that may wait before the worker claims no more."""


class End:
    """The last item that a stopped thread takes from its queue."""


class EventDispatcher:
    """Delivers events in order, in a thread. The thread starts with the first event that a sink wants."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]] | End] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end: End | None = None  # in `_waiting`: ends the thread, unless an event was sent after it
        self._ending = threading.Lock()  # guards `_end` and `_thread`
        self._queued = 0  # written by the caller's thread alone
        self._delivered = 0  # written by the dispatcher's thread alone
        self._began_at = NEVER  # when the running receiver began; written by the dispatcher's thread alone

    @property
    def backlog(self) -> int:
        return self._queued - self._delivered

    @property
    def is_full(self) -> bool:
        return self.backlog > MOST_EVENTS_WAITING

    @property
    def hangs_at(self) -> float:
        """Time after which the running receiver counts as hanging, in monotonic seconds."""
        return self._began_at + HANGS_AFTER

    def stack(self) -> str:
        thread = self._thread
        return "".join(stacks(thread)) if thread else ""

    def send(self, event: Event) -> None:
        """Queue the event for the sinks, unless no sink wants it. Returns at once."""
        if wanted(type(event)):
            self._put(event.size, partial(send, event, self._note_alive))

    def flush(self, timeout: float) -> None:
        """Deliver the waiting events, for `timeout` seconds at most."""
        if self._thread is not None:
            delivered = threading.Event()
            self._put(0, delivered.set)
            delivered.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Deliver the waiting events, for `timeout` seconds at most, and end the thread.

        If a thread hangs in a receiver, it ends when the receiver returns, or goes on if events were sent meanwhile.
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
                work = self._waiting.get()
                if not isinstance(work, End):
                    connections = self._deliver(*work, connections)
                    continue
                with self._ending:
                    if work is self._end:  # no event was sent after it
                        self._thread = None
                        return
        finally:
            connections.throw_away()

    def _deliver(self, count: int, send_it: Callable[[], None], connections: ThreadConnections) -> ThreadConnections:
        self._note_alive()
        connections.check()
        with contextlib.suppress(JobInterrupted):  # raised by a receiver: here it interrupts nothing
            send_it()
        self._delivered += count
        try:
            connections.tidy()
        except Exception:  # a driver that raises must not end the thread that sends all later events
            connections.throw_away()
            connections = ThreadConnections()
        self._began_at = NEVER
        return connections


class ReceiverCheck(Service):
    """Logs each signal receiver that hangs, once. The receivers of later events wait for its end."""

    name = "receiver_check"
    loop_handles_errors = False

    def __init__(
        self, dispatcher: EventDispatcher, *, who: str, hint: str, then: Callable[[], object] = lambda: None
    ) -> None:
        """who, hint: the process and the consequence, for the log line. then: called after the log line."""
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
    """Used by the thread of a control loop."""

    def claimed(self, jobs: Sequence[ClaimedJob]) -> None:
        """Observe a claim of these jobs, in their order."""

    def ended(self, kind: type[AttemptsEnded], attempts: Sequence[Attempt]) -> None:
        """Observe attempts, after the database has accepted or rejected their outcomes."""

    def sent(self, event: Event) -> None:
        """Observe an event of a store, before the event is sent."""


class SettleService(Service):
    """A service that continues after the end of jobs. Used by the thread of a control loop."""

    @abstractmethod
    def settled(self, settled: Mapping[LeaseRef, int | None]) -> None:
        """Note that these jobs are settled, each with its batch. Called only if one of the jobs has a batch."""


def settle_services(store: Store, *, is_idle: Callable[[], bool] = lambda: False) -> tuple[SettleService, ...]:
    """The services of all parts. is_idle: returns whether the process has no job that a service could delay."""
    return tuple(service(store, is_idle) for part in installed_parts() for service in part.settle_services)


class Observers:
    """The observers of all parts."""

    def __init__(self) -> None:
        kinds = [kind for part in installed_parts() for kind in part.observers]
        self.made: list[Observer] = [observer() for observer, _ in kinds]
        self._services = [service for _, service in kinds]

    def services(self, store: Store) -> list[Periodic]:
        """The services that store what was observed. They run at intervals, and at the end of the process."""
        return [service(store, observer) for service, observer in zip(self._services, self.made, strict=True)]

    def observing(self, send: Send) -> Send:
        """Return a function that observes an event, and sends it."""

        def observe_and_send(event: Event) -> None:
            for observer in self.made:
                observer.sent(event)
            send(event)

        return observe_and_send

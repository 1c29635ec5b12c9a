"""Sends events to their sinks in a thread of its own, so that no code of the project runs in a control loop.

Invariant: a slow or hanging receiver or sink delays other receivers and sinks, and nothing else.

A signal receiver that hangs in this thread is detected by a service of the control loop, and logged.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from ..events import liveness_logs
from ..events.events import Event
from ..events.sinks import send, wanted
from ..exceptions import JobInterrupted
from ..values.records import NEVER
from .attempts.connections import ThreadConnections
from .attempts.interruption import stacks
from .loop import Service

HANGS_AFTER = 60.0
"""Seconds after which a running receiver counts as hanging."""

MOST_WAITING = 10_000
"""Events that may wait before the worker claims no more."""


class End:
    """The last item that a stopped thread takes from its queue."""


class EventDispatcher:
    """Delivers events in order, in a thread that the first event with an interested sink starts."""

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
        return self.backlog > MOST_WAITING

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

        A thread that hangs in a receiver ends when the receiver returns, or goes on if events were sent meanwhile.
        """
        thread = self._thread
        if thread is not None:
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
                elif self._ends(work):
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

    def _ends(self, end: End) -> bool:
        """Whether the thread ends here: no event was sent after this item."""
        with self._ending:
            if end is not self._end:
                return False
            self._thread = None
            return True


class ReceiverCheck(Service):
    """Logs each receiver that hangs, once. The receivers of later events wait behind it."""

    name = "receiver_check"
    loop_handles_errors = False

    def __init__(
        self, dispatcher: EventDispatcher, *, who: str, hint: str, then: Callable[[], object] = lambda: None
    ) -> None:
        """`who` names the process, and `hint` the consequence, in the log line. `then` is called after it."""
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

"""A connection to RabbitMQ that never waits, once it is set up.

Invariant: a broker that does not read, or does not answer, holds up nobody: what cannot be sent waits here, and
`receive` takes what is there and returns. When the connection breaks, what had come before is dispatched first.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any

import amqp
from kombu.connection import Connection
from kombu.exceptions import KombuError

from ...values.times import NEVER
from ..carrier import CarrierMisconfigured, CarrierUnreachable
from .frames import HEARTBEAT, FrameReader

SET_UP_SECONDS = 10
"""Seconds that each step of the set-up may take, such as to connect or to declare a queue."""

HEARTBEAT_SECONDS = 60
"""A connection on which nothing was received for twice as long is broken. The broker may ask for less."""

PATIENCE = 1.0
"""Seconds for which a broker may read nothing before it counts as blocked: its buffers were full for a moment."""

CLOSE_SECONDS = 1.0

RECEIVED_AT_ONCE = 1 << 18
"""Bytes."""

TRANSPORT = "amqp"

ERRORS = (OSError, amqp.AMQPError, KombuError)
"""By which a connection breaks."""


class AmqpLink:
    """Used by one thread at a time. `connect` and `connection` wait; after `start`, `send` and `receive` do not."""

    def __init__(self, broker: Connection, *, heartbeat: int = HEARTBEAT_SECONDS) -> None:
        """heartbeat: in seconds; 0: none."""
        self._broker = broker
        self._heartbeat = heartbeat
        self.connection: Any = None
        """py-amqp's connection: opens channels, and dispatches what is received to their callbacks."""
        self.is_blocked_by_broker = False
        self._selector: DefaultSelector | None = None
        self._socket: Any = None  # not the connection's `sock`: without a transport, py-amqp would connect again
        self._failure: Exception | None = None  # of a `send`: the next `receive` raises it
        self._unsent = bytearray()
        self._unsent_since = NEVER
        self._sent_at = self._received_at = 0.0

    def connect(self) -> None:
        """Open the connection. Its socket waits up to `SET_UP_SECONDS` until `start` is called."""
        if self._broker.transport.driver_type != TRANSPORT:
            raise CarrierMisconfigured(
                f"The broker of the Celery app is {self._broker.transport.driver_type!r}: a carrier needs RabbitMQ, "
                "with a broker_url that begins with amqp:// or amqps://."
            )
        self._unsent.clear()
        self._unsent_since = NEVER
        self.is_blocked_by_broker = False
        self._broker.heartbeat = self._heartbeat
        self._broker.connect_timeout = SET_UP_SECONDS
        options = dict(self._broker.transport_options or {})
        options["socket_settings"] = {
            **_patient_socket(),
            **options.get("socket_settings", {}),
        }
        options.update(on_blocked=self._blocked, on_unblocked=self._unblocked)
        self._broker.transport_options = options
        with self.translated_errors():
            try:
                self.connection = self._broker.transport.establish_connection()
            except (amqp.AccessRefused, amqp.NotAllowed) as error:
                raise CarrierMisconfigured(f"The broker refuses the connection: {error}") from error
            except ERRORS:
                self._broker.maybe_switch_next()  # type: ignore[no-untyped-call]
                raise
            self.connection.sock.settimeout(SET_UP_SECONDS)

    def channel(self) -> Any:
        """Open a channel. If the broker closes it, `receive` says why, and the connection is of no more use."""
        channel = self.connection.channel()
        channel._do_revive = _leave_closed
        return channel

    def start(self) -> None:
        """Wait no more from here on."""
        self._socket, self._failure = self.connection.sock, None
        self._socket.setblocking(False)
        self._reader = FrameReader(self.frame_max)
        self._selector = DefaultSelector()
        self._selector.register(self._socket, EVENT_READ)
        self._sent_at = self._received_at = time.monotonic()

    @property
    def frame_max(self) -> int:
        """The largest frame that the broker takes, in bytes."""
        return int(self.connection.frame_max)

    @property
    def is_blocked(self) -> bool:
        """Whether the broker does not read, or has said that it lacks memory or space."""
        return self.is_blocked_by_broker or self._unsent_since + PATIENCE <= time.monotonic()

    def fileno(self) -> int:
        """Can be read when there is something to receive, or room for what could not be sent."""
        if self._selector is None:
            raise CarrierUnreachable("The connection is not open.")
        return int(self._selector.fileno())

    def send(self, data: bytes) -> None:
        """Send whole frames. Those for which there is no room now are sent by a later `receive`.

        If the connection is broken, `receive` says so, after it has dispatched what had come before.
        """
        self._require_open()
        try:
            sent = 0 if self._unsent else self._send_some(data)
            if sent < len(data):
                self._keep(data[sent:])
        except OSError as error:
            self._failure = error

    def receive(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Dispatch what has come to the callbacks of its channels, until nothing is left, or until it is enough.

        The broker keeps the rest, as it keeps all if it is enough before. That the broker is silent is then no error.
        """
        with self.translated_errors():
            self._require_open()
            handle = self.connection.on_inbound_frame
            while not is_enough() and (received := self._receive_some()):
                for frame in self._reader.read(received):
                    handle(frame)
            if self._failure is not None:
                raise self._failure
            self._send_rest()
            if is_enough():
                self._received_at = time.monotonic()
            self._send_heartbeat(time.monotonic())

    def close(self) -> None:
        """Close the connection, if it is open. Raises nothing."""
        connection, self.connection = self.connection, None
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if connection is None:
            return
        with suppress(*ERRORS, AttributeError):
            if not self._unsent and self._failure is None and connection.connected:
                connection.sock.settimeout(CLOSE_SECONDS)
                connection.close()
        with suppress(*ERRORS, AttributeError):
            connection.collect()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Within this block the errors of a broken connection are `CarrierUnreachable`."""
        try:
            yield
        except ERRORS as error:
            raise CarrierUnreachable(f"{type(error).__name__}: {error}") from error

    def _require_open(self) -> None:
        if self._selector is None:
            raise CarrierUnreachable("The connection is not open.")

    def _receive_some(self) -> bytes:
        try:
            received: bytes = self._socket.recv(RECEIVED_AT_ONCE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        if not received:
            raise ConnectionResetError("The broker has closed the connection.")
        self._received_at = time.monotonic()
        return received

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            sent = int(self._socket.send(data))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        self._sent_at = time.monotonic()
        return sent

    def _keep(self, data: bytes) -> None:
        assert self._selector is not None  # noqa: S101 (for the type checker: the connection is open)
        self._unsent += data
        self._unsent_since = min(self._unsent_since, time.monotonic())
        self._selector.modify(self._socket, EVENT_READ | EVENT_WRITE)

    def _send_rest(self) -> None:
        if not self._unsent:
            return
        while self._unsent and (sent := self._send_some(self._unsent)):
            del self._unsent[:sent]
            self._unsent_since = time.monotonic()
        if not self._unsent and self._selector is not None:
            self._unsent_since = NEVER
            self._selector.modify(self._socket, EVENT_READ)

    def _send_heartbeat(self, now: float) -> None:
        """Send a heartbeat if one is due. A blocked broker goes on sending its own."""
        interval = self.connection.heartbeat
        if not interval:
            return
        if now - self._received_at > 2 * interval:
            raise TimeoutError(f"Nothing was received for {now - self._received_at:.0f} s.")
        if now - self._sent_at > interval / 3 and not self._unsent:
            self.send(HEARTBEAT)

    def _blocked(self, reason: str) -> None:
        self.is_blocked_by_broker = True

    def _unblocked(self) -> None:
        self.is_blocked_by_broker = False


def _leave_closed() -> None:
    """In place of opening the channel again: py-amqp would wait for it, and that error would hide the broker's."""


def _patient_socket() -> dict[int, int]:
    """Options of a socket that outlives a busy broker: by default py-amqp drops it if nobody reads for a second."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return {}
    return {socket.TCP_USER_TIMEOUT: 2 * HEARTBEAT_SECONDS * 1000}

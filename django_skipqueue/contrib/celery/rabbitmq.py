"""A connection to RabbitMQ, by kombu and py-amqp: what is published and confirmed, what is delivered, and how large.

Invariant: `receive` takes what has come, and waits for nothing else. Any other call waits for the broker for
`STEP_SECONDS` at most.

Invariant: each published message is settled once. The broker returns a message that it cannot put anywhere, and then
confirms it all the same: such a message is refused.

Invariant: a delivery is acknowledged after the relay has said so for each of its parts, and once.

RabbitMQ does not announce its `max_message_size`: it closes the channel on which a larger message comes. So the setting
`MAX_MESSAGE_SIZE` says how large a message may be, and what RabbitMQ says when it refuses a message counts if it is
less. Invariant: a message that RabbitMQ has refused for its size is not sent a second time.
"""

import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Generic, TypeVar

import amqp
from kombu.exceptions import KombuError

from ...values.records import NEVER
from .carrier import CarrierMisconfigured, CarrierUnreachable

STEP_SECONDS = 10
"""Seconds that each step may take, such as to connect, to declare a queue, or to write a message."""

HEARTBEAT_SECONDS = 60
"""A connection on which nothing was received for twice as long is broken. The broker may ask for less."""

HEARTBEAT_CHECK_SECONDS = 1.0

REST_SECONDS = 1.0
"""Seconds for the rest of a frame whose beginning has come."""

CLOSE_SECONDS = 1.0

TRANSPORT = "amqp"

NEEDED = "A carrier needs RabbitMQ, with a broker_url that begins with amqp:// or amqps://."

ERRORS = (OSError, amqp.AMQPError, KombuError)
"""By which a connection breaks."""


class AmqpLink:
    """Used by one thread at a time."""

    def __init__(self, app: Any, *, heartbeat: int = 0) -> None:
        """heartbeat: in seconds; 0: none, for a connection at which nobody looks regularly.

        Raises `CarrierMisconfigured` for a broker of another kind.
        """
        options = {
            "on_blocked": self._blocked,
            "on_unblocked": self._unblocked,
            "confirm_publish": False,  # py-amqp would wait for the confirm of each message
            "socket_settings": _patient_socket() | app.conf.broker_transport_options.get("socket_settings", {}),
        }
        self._broker = app.connection_for_write(
            heartbeat=heartbeat, connect_timeout=STEP_SECONDS, transport_options=options
        )
        kind = self._broker.transport.driver_type
        if kind != TRANSPORT:
            raise CarrierMisconfigured(f"The broker of the Celery app is {kind!r}. {NEEDED}")
        self._place = ""
        self._connection: Any = None  # py-amqp's
        self._poll = select.poll()
        self._failure: Exception | None = None  # by which receiving has ended: the connection is of no more use
        self._checked_at = 0.0
        self.is_blocked = False
        """Whether the broker has said that it lacks memory or space: it reads no message from this connection."""

    @property
    def vhost(self) -> str:
        """RabbitMQ's virtual host."""
        return str(self._broker.virtual_host)

    @property
    def user(self) -> str:
        return str(self._broker.userid or self._broker.transport.default_connection_params["userid"])

    def connect(self) -> None:
        """Open the connection. After a failure the next try takes the next of the app's URLs."""
        self.is_blocked, self._failure = False, None
        self._place = self._named()
        with self.translated_errors():
            try:
                self._connection = self._broker.transport.establish_connection()
            except (amqp.AccessRefused, amqp.NotAllowed) as error:
                raise CarrierMisconfigured(f"The broker refuses the connection: {error}{self._place}") from error
            except ERRORS:
                self._broker.maybe_switch_next()
                raise
            self._connection.sock.settimeout(STEP_SECONDS)
            self._poll = select.poll()
            self._poll.register(self._connection.sock, select.POLLIN)
            # By this py-amqp would look for such notices before it writes a message. `receive` takes them.
            self._connection.client_properties.get("capabilities", {}).pop("connection.blocked", None)

    def channel(self) -> Any:
        """Open a channel. If the broker closes it, `receive` says why, and the connection is of no more use."""
        return self._open_connection().channel()

    def fileno(self) -> int:
        """Can be read when there is something to receive."""
        return int(self._open_connection().sock.fileno())

    def has_come(self) -> bool:
        """Whether there is something to receive."""
        sock = self._open_connection().sock
        return bool((isinstance(sock, ssl.SSLSocket) and sock.pending()) or self._poll.poll(0))

    def receive(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Dispatch what has come to the callbacks of its channels, until nothing is left, or until it is enough.

        The broker keeps the rest, as it keeps all if it is enough before. That the broker is silent is then no error.
        """
        connection = self._open_connection()
        with self.translated_errors():
            try:
                while not is_enough() and self.has_come():
                    with suppress(TimeoutError):  # the rest comes later
                        connection.drain_events(timeout=REST_SECONDS)
                self._check_heartbeats(connection, is_read=not is_enough())
            except ERRORS as error:
                self._failure = error
                raise

    def _check_heartbeats(self, connection: Any, *, is_read: bool) -> None:
        if not connection.heartbeat or (now := time.monotonic()) < self._checked_at + HEARTBEAT_CHECK_SECONDS:
            return
        self._checked_at = now
        if is_read:
            connection.heartbeat_tick()
        else:
            connection.send_heartbeat()

    def close(self) -> None:
        """Close the connection, if it is open. Raises nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(*ERRORS, AttributeError):
            if self._failure is None and connection.connected:
                connection.sock.settimeout(CLOSE_SECONDS)
                connection.close()
        with suppress(*ERRORS, AttributeError):
            connection.collect()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Within this block the errors of a broken connection are `CarrierUnreachable`."""
        try:
            yield
        except ERRORS as error:
            raise CarrierUnreachable(f"{type(error).__name__}: {error}{self._place}") from error

    def _named(self) -> str:
        """Host, port and virtual host, for error messages: there may be several brokers."""
        broker = self._broker
        port = broker.port or broker.transport.default_connection_params["port"]
        return f" (broker {broker.hostname}:{port}, vhost {self.vhost!r})"

    def _open_connection(self) -> Any:
        if self._connection is None:
            raise CarrierUnreachable("The connection is not open.")
        if self._failure is not None:
            with self.translated_errors():
                raise self._failure
        return self._connection

    def _blocked(self, reason: str) -> None:
        self.is_blocked = True

    def _unblocked(self) -> None:
        self.is_blocked = False


def _patient_socket() -> dict[int, int]:
    """Options of a socket that outlives a busy broker: by default py-amqp drops it if nobody reads for a second."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return {}
    return {socket.TCP_USER_TIMEOUT: 2 * HEARTBEAT_SECONDS * 1000}


CONFIRM_SECONDS = 60.0
"""A broker that has not confirmed a message for so long, although it is not blocked, is connected to again."""

Key = TypeVar("Key")


class Confirms(Generic[Key]):
    """A channel in confirm mode, on which the broker numbers the messages from 1 on. Its keys name the messages."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._open: dict[int, tuple[Key, float]] = {}  # by number, ascending: the key, and when it was published
        self._published = 0
        self._excused_at = -NEVER
        self._returned: set[str] = set()
        self.confirmed: list[Key] = []
        """The messages that the broker has, since somebody emptied this list."""
        self.refused: list[Key] = []
        """The messages that the broker has not taken: their queue is full, or gone."""
        channel.events["basic_ack"].add(self._confirm)
        channel.events["basic_nack"].add(self._refuse)
        channel.events["basic_return"].add(self._return)
        channel.confirm_select()

    def publish(self, key: Key, body: bytes, *, queue: str, **properties: Any) -> None:
        """Publish a persistent message of JSON to this queue."""
        self._published += 1
        self._open[self._published] = key, time.monotonic()
        message = amqp.Message(
            body,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            message_id=str(self._published),
            **properties,
        )
        self._channel.basic_publish(message, routing_key=queue, mandatory=True)

    @property
    def unsettled(self) -> list[Key]:
        """The published messages that the broker has neither confirmed nor refused."""
        return [key for key, _ in self._open.values()]

    def are_late(self, *, is_blocked: bool) -> bool:
        """Whether the broker owes the oldest answer for too long. While it is blocked, all count as published now."""
        now = time.monotonic()
        if is_blocked:
            self._excused_at = now
            return False
        _, published_at = next(iter(self._open.values()), (None, NEVER))
        return max(published_at, self._excused_at) + CONFIRM_SECONDS < now

    def _confirm(self, number: int, multiple: bool) -> None:
        for each in self._numbers(number, multiple):
            key, _ = self._open.pop(each)
            if self._returned and str(each) in self._returned:
                self._returned.remove(str(each))
                self.refused.append(key)
            else:
                self.confirmed.append(key)

    def _refuse(self, number: int, multiple: bool) -> None:
        self.refused += [self._open.pop(each)[0] for each in self._numbers(number, multiple)]

    def _return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(message.properties["message_id"])

    def _numbers(self, number: int, multiple: bool) -> list[int]:
        """The open message of this number; `multiple`: and all before it."""
        if multiple:
            return list(takewhile(number.__ge__, self._open))
        return [number] if number in self._open else []


class Deliveries:
    """The broker numbers the deliveries of a channel in ascending order."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._done: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, int] = {}  # still to be acknowledged, of deliveries that have several left
        self.size = 0
        """Bytes of those that are not acknowledged."""

    def add(self, tag: int, size: int = 0, *, parts: int = 1) -> None:
        """Note a delivery of `size` bytes, which holds `parts` outcomes."""
        self._open.append(tag)
        self._sizes[tag] = size
        self.size += size
        if parts > 1:
            self._parts[tag] = parts

    def acknowledge(self, tags: Collection[int]) -> list[tuple[int, bool]]:
        """Note these as acknowledged. Returns the numbers to acknowledge, and whether each stands for all before it.

        A delivery of several parts is given as often. Unknown numbers are of an earlier connection, and are left out:
        their messages come again under other numbers.
        """
        done = self._done
        whole = [tag for tag in tags if self._is_whole(tag)]
        done.update(whole)
        self.size -= sum([self._sizes.pop(tag, 0) for tag in whole])
        last = 0
        while self._open and self._open[0] in done:
            last = self._open.popleft()
            done.remove(last)
        multiple = [(last, True)] if last else []
        single = done.intersection(self._open)
        done.clear()
        if single:
            self._open = deque(tag for tag in self._open if tag not in single)
        return [*multiple, *((tag, False) for tag in sorted(single))]

    def _is_whole(self, tag: int) -> bool:
        """Note that a part is acknowledged. Returns whether it was the last."""
        left = self._parts.get(tag, 1) - 1
        if left > 0:
            self._parts[tag] = left
        else:
            self._parts.pop(tag, None)
        return left <= 0


LARGEST = 512 * 1024 * 1024
"""Bytes. RabbitMQ allows no larger `max_message_size`."""

_REFUSAL = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class MessageLimit:
    def __init__(self) -> None:
        self._said = LARGEST

    def most(self, setting: int) -> int:
        """How many bytes the body of a message may have, by the setting and by what the broker has said."""
        return min(setting, self._said)

    def learn(self, error: BaseException) -> None:
        if found := _REFUSAL.search(str(error)):
            self._said = min(self._said, int(found[1]))

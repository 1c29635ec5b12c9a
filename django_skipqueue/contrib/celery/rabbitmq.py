"""RabbitMQ for relays and Celery's workers: its exchanges and queues, and a connection by kombu and py-amqp.

A job's message is kept until its content is safe elsewhere. No queue drops a message: a full queue refuses it. A
message that waits too long, or is delivered too often, goes to the back queue of the job's database.

`receive` reads what has arrived and does not wait for more. All other calls wait at most `STEP_SECONDS` for the broker.

Each published message is either confirmed or refused, exactly once. A message that the broker returns counts as
refused, although the broker then confirms it.

A link acknowledges a delivery once, after the relay has acknowledged all of its parts.

RabbitMQ does not announce its `max_message_size`, but closes the channel if a message is larger. So the setting
`MAX_MESSAGE_SIZE` says how large a message may be. If RabbitMQ refuses a message and names a smaller size, that size
counts. A link never sends a message again that RabbitMQ has refused for its size.
"""

import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Generic, TypeVar

import amqp
from kombu.exceptions import KombuError

from ...values.records import NEVER
from .carrier import CarrierMisconfigured, CarrierUnreachable

BACK_EXCHANGE = "skipqueue.back"
"""The exchange for dead letters of jobs. It routes each to the back queue of the job's database."""

FOREIGN = "skipqueue.foreign"
"""The exchange and queue for dead letters of other Celery tasks, which would otherwise block all dead letters."""

MOST_FOREIGN_MESSAGES = 10_000
"""The maximum number of messages in the queue `FOREIGN`."""

DATABASE_HEADER = "skipqueue-database"
"""The header of a job's message that says where its outcome must be sent."""

DELIVERY_LIMIT = 2
"""How often a message is delivered again after a worker has died."""

NO_DELIVERY_LIMIT = 1_000_000_000
"""The delivery limit of the package's own queues, because RabbitMQ 4 by default drops a message after 20 deliveries."""

CARRIED_QUEUE: Mapping[str, Any] = {
    "x-queue-type": "quorum",
    "x-delivery-limit": DELIVERY_LIMIT,
    "x-dead-letter-exchange": BACK_EXCHANGE,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
"""The arguments of a queue from which Celery's workers take jobs."""

OWN_QUEUE: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": NO_DELIVERY_LIMIT}
"""The arguments of the queues from which relays take outcomes and returned jobs."""

FOREIGN_QUEUE: Mapping[str, Any] = {"x-queue-type": "quorum", "x-max-length": MOST_FOREIGN_MESSAGES}
"""The arguments of the queue `FOREIGN`, which drops its oldest messages."""

EXCHANGES: Mapping[str, tuple[str, dict[str, str]]] = {
    FOREIGN: ("fanout", {}),
    BACK_EXCHANGE: ("headers", {"alternate-exchange": FOREIGN}),
}
"""The type and the arguments of each exchange, in the order in which they are declared."""


def outcome_queue(home: str) -> str:
    """Return the name of the queue for outcomes. `home`: the name of the jobs' database, made by `home_of`."""
    return f"skipqueue.outcomes.{home}"


def back_queue(home: str) -> str:
    """Return the name of the queue for jobs of this home that come back without an outcome."""
    return f"skipqueue.back.{home}"


def queues_of(celery_queues: Iterable[str], home: str) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of each queue that relays of this home use. `celery_queues` contains names."""
    own_queues = {FOREIGN: FOREIGN_QUEUE, outcome_queue(home): OWN_QUEUE, back_queue(home): OWN_QUEUE}
    return {**own_queues, **dict.fromkeys(celery_queues, CARRIED_QUEUE)}


def bindings_of(home: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return the exchange, queue and arguments of each binding."""
    return [(FOREIGN, FOREIGN, {}), (BACK_EXCHANGE, back_queue(home), {"x-match": "all", DATABASE_HEADER: home})]


def declare(channel: Any, celery_queues: Iterable[str], home: str, *, create: bool) -> None:
    """Create the missing exchanges and queues, or only check that they exist. Raises `CarrierMisconfigured`."""
    options: dict[str, Any] = {"passive": not create, "durable": True, "auto_delete": False}
    for name, (kind, arguments) in EXCHANGES.items():
        with _explaining_refusals(f"exchange {name!r}", f"type {kind!r}", arguments, create):
            channel.exchange_declare(name, kind, arguments=arguments, **options)
    for name, queue_arguments in queues_of(celery_queues, home).items():
        with _explaining_refusals(f"queue {name!r}", "durable", queue_arguments, create):
            channel.queue_declare(name, arguments=dict(queue_arguments), **options)
    if create:
        for exchange, queue, match in bindings_of(home):
            channel.queue_bind(queue, exchange, arguments=match)


@contextmanager
def _explaining_refusals(object_name: str, kind: str, arguments: Mapping[str, Any], create: bool) -> Iterator[None]:
    """Raise `CarrierMisconfigured`, which says what is needed, if the broker refuses a declaration."""
    description = f"the {object_name}, {kind}, with the arguments {dict(arguments)}"
    try:
        yield
    except amqp.PreconditionFailed as error:
        raise CarrierMisconfigured(
            f"The {object_name} exists with other arguments. The carrier needs {description}. "
            'Delete it once it is empty, or name another queue in QUEUES. With "DECLARE": False the arguments are '
            f"not checked, and you must make sure that they are right. The broker says: {error.reply_text}"
        ) from error
    except amqp.NotFound as error:
        problem = (
            f"The broker cannot declare {description}."
            if create
            else f'There is no {object_name}. Because "DECLARE" is False, you must create {description}.'
        )
        raise CarrierMisconfigured(f"{problem} The broker says: {error.reply_text}") from error
    except amqp.AccessRefused as error:
        raise CarrierMisconfigured(
            f"The broker's user may not declare {description}. Give the user this right, or create everything that "
            f'`manage.py runrelay --show-topology` prints and set "DECLARE": False. The broker says: '
            f"{error.reply_text}"
        ) from error


def definitions(celery_queues: Iterable[str], homes: Iterable[str], *, vhost: str, user: str) -> dict[str, Any]:
    """Return the exchanges, queues and bindings for `rabbitmqctl import_definitions`.

    celery_queues: the names of Celery's queues. homes: the names of the jobs' databases, made by `home_of`.
    """
    celery_queues, homes = list(celery_queues), list(homes)
    queues = {
        name: queue_arguments for home in homes for name, queue_arguments in queues_of(celery_queues, home).items()
    }
    bindings = {binding[:2]: binding for home in homes for binding in bindings_of(home)}
    durable_options = {"durable": True, "auto_delete": False}
    return {
        "exchanges": [
            {"name": name, "vhost": vhost, "type": kind, **durable_options, "internal": False, "arguments": arguments}
            for name, (kind, arguments) in EXCHANGES.items()
        ],
        "queues": [
            {"name": name, "vhost": vhost, **durable_options, "arguments": dict(queue_arguments)}
            for name, queue_arguments in queues.items()
        ],
        "bindings": [
            {
                "source": exchange,
                "vhost": vhost,
                "destination": queue,
                "destination_type": "queue",
                "routing_key": "",
                "arguments": match,
            }
            for exchange, queue, match in bindings.values()
        ],
        "permissions": [
            {
                "user": user,
                "vhost": vhost,
                "configure": "^$",
                "write": r"^amq\.default$",
                "read": f"^({'|'.join(re.escape(name) for name in queues if name != FOREIGN)})$",
            }
        ],
    }


# A connection

STEP_SECONDS = 10
"""Seconds that each step may take, such as connecting, declaring a queue, or writing a message."""

HEARTBEAT_SECONDS = 60
"""A connection counts as broken if it receives nothing for twice this time. The broker may ask for a shorter time."""

HEARTBEAT_CHECK_SECONDS = 1.0

REST_SECONDS = 1.0
"""Seconds to wait for the rest of an AMQP frame whose beginning has arrived."""

CLOSE_SECONDS = 1.0

RABBITMQ_NEEDED = "A carrier needs RabbitMQ, with a broker_url that begins with amqp:// or amqps://."

_SOCKET_SETTINGS = (
    {socket.TCP_USER_TIMEOUT: 2 * HEARTBEAT_SECONDS * 1000} if hasattr(socket, "TCP_USER_TIMEOUT") else {}
)
"""Socket options for a busy broker: by default, py-amqp gives up if the other side reads nothing for a second."""

CONNECTION_ERRORS = (OSError, amqp.AMQPError, KombuError)
"""The errors of a broken connection."""

LARGEST_MESSAGE = 512 * 1024 * 1024
"""The largest `max_message_size` that RabbitMQ allows, in bytes."""

_REFUSAL = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class AmqpLink:
    """A connection to the broker. Only one thread at a time may use it."""

    def __init__(self, app: Any, *, heartbeat: int = 0) -> None:
        """heartbeat: the interval in seconds; 0 for a connection that is not read regularly.

        Raises `CarrierMisconfigured` if the broker is not RabbitMQ.
        """
        options = {
            "on_blocked": self._blocked,
            "on_unblocked": self._unblocked,
            "confirm_publish": False,  # py-amqp would wait for the confirm of each message
            "socket_settings": _SOCKET_SETTINGS | app.conf.broker_transport_options.get("socket_settings", {}),
        }
        self._broker = app.connection_for_write(
            heartbeat=heartbeat, connect_timeout=STEP_SECONDS, transport_options=options
        )
        kind = self._broker.transport.driver_type
        if kind != "amqp":
            raise CarrierMisconfigured(f"The broker of the Celery app is {kind!r}. {RABBITMQ_NEEDED}")
        self._broker_text = ""  # for error messages, since there may be several brokers
        self.connection: Any = None  # a connection of py-amqp
        self._poll = select.poll()
        self._failure: Exception | None = None  # the error that has ended the connection
        self._checked_at = 0.0
        self._largest_accepted = LARGEST_MESSAGE  # the largest message in bytes, as far as the broker has said
        self.is_blocked = False
        """Whether the broker has said that it lacks memory or disk space, so it reads nothing from this connection."""

    @property
    def vhost(self) -> str:
        """RabbitMQ's virtual host."""
        return str(self._broker.virtual_host)

    @property
    def user(self) -> str:
        return str(self._broker.userid or self._broker.transport.default_connection_params["userid"])

    def largest_message(self, setting: int) -> int:
        """Return how many bytes a message may have, by the setting and by what the broker has said."""
        return min(setting, self._largest_accepted)

    def connect(self) -> None:
        """Open the connection. After a failure, the next try uses the next of the app's broker URLs."""
        self.is_blocked, self._failure = False, None
        broker = self._broker
        port = broker.port or broker.transport.default_connection_params["port"]
        self._broker_text = f" (broker {broker.hostname}:{port}, vhost {self.vhost!r})"
        with self.translated_errors():
            try:
                self.connection = broker.transport.establish_connection()
            except (amqp.AccessRefused, amqp.NotAllowed) as error:
                raise CarrierMisconfigured(f"The broker refuses the connection: {error}{self._broker_text}") from error
            except CONNECTION_ERRORS:
                broker.maybe_switch_next()
                raise
            self.connection.sock.settimeout(STEP_SECONDS)
            self._poll = select.poll()
            self._poll.register(self.connection.sock, select.POLLIN)
            # Otherwise py-amqp would check before each message whether the broker is blocked. `receive` does that.
            self.connection.client_properties.get("capabilities", {}).pop("connection.blocked", None)

    def channel(self) -> Any:
        """Open a channel. If the broker closes it, `receive` raises the reason, and the connection has ended."""
        return self._open_connection().channel()

    def fileno(self) -> int:
        return int(self._open_connection().sock.fileno())

    def has_input(self) -> bool:
        """Return whether there is something to receive."""
        sock = self._open_connection().sock
        return bool((isinstance(sock, ssl.SSLSocket) and sock.pending()) or self._poll.poll(0))

    def receive(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Pass what has arrived to the callbacks of the channels, until nothing is left or `is_enough` returns true.

        The broker keeps the rest. If `is_enough` is true before the call, a silent broker is not an error.
        """
        connection = self._open_connection()
        with self.translated_errors():
            try:
                while not is_enough() and self.has_input():
                    with suppress(TimeoutError):  # the rest of the frame comes later
                        connection.drain_events(timeout=REST_SECONDS)
                now = time.monotonic()
                if connection.heartbeat and now >= self._checked_at + HEARTBEAT_CHECK_SECONDS:
                    self._checked_at = now
                    # `heartbeat_tick` also raises an error if nothing was received, so it is only called after reading.
                    keep_alive = connection.send_heartbeat if is_enough() else connection.heartbeat_tick
                    keep_alive()
            except CONNECTION_ERRORS as error:
                self._failure = error
                raise

    def close(self) -> None:
        """Close the connection, if it is open. Raises nothing."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        with suppress(*CONNECTION_ERRORS, AttributeError):
            if self._failure is None and connection.connected:
                connection.sock.settimeout(CLOSE_SECONDS)
                connection.close()
        with suppress(*CONNECTION_ERRORS, AttributeError):
            connection.collect()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn the errors of a broken connection into `CarrierUnreachable`."""
        try:
            yield
        except CONNECTION_ERRORS as error:
            if refusal := _REFUSAL.search(str(error)):
                self._largest_accepted = min(self._largest_accepted, int(refusal[1]))
            raise CarrierUnreachable(f"{type(error).__name__}: {error}{self._broker_text}") from error

    def _open_connection(self) -> Any:
        if self.connection is None:
            raise CarrierUnreachable("The connection is not open.")
        if self._failure is not None:
            with self.translated_errors():
                raise self._failure
        return self.connection

    def _blocked(self, reason: str) -> None:
        self.is_blocked = True

    def _unblocked(self) -> None:
        self.is_blocked = False


LONGEST_CONFIRM_SECONDS = 60.0
"""If a broker that is not blocked has not confirmed a message for this time, the connection is opened again."""

Key = TypeVar("Key")


class Confirms(Generic[Key]):
    """A channel on which the broker confirms each message. Keys of the caller's choice identify the messages."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        # For each open message, by its number, in ascending order: its key, and when it was published.
        self._pending: dict[int, tuple[Key, float]] = {}
        self._published = 0
        self._last_blocked_at = -NEVER  # the broker was not blocked yet
        self._returned: set[str] = set()
        self.confirmed: list[Key] = []
        """The keys of messages that the broker has confirmed, since the owner last emptied this list."""
        self.refused: list[Key] = []
        """The keys of messages that the broker has refused, because the queue is full or does not exist."""
        channel.events["basic_ack"].add(self._confirm)
        channel.events["basic_nack"].add(self._refuse)
        channel.events["basic_return"].add(self._return)
        channel.confirm_select()

    def publish(self, key: Key, body: bytes, *, queue: str, **properties: Any) -> None:
        """Publish a persistent JSON message to this queue."""
        self._published += 1
        self._pending[self._published] = key, time.monotonic()
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
        """The keys of published messages that the broker has neither confirmed nor refused."""
        return [key for key, _published_at in self._pending.values()]

    def are_late(self, *, is_blocked: bool) -> bool:
        """Return whether a confirm is late. While the broker is blocked, no confirm is late."""
        now = time.monotonic()
        if is_blocked:
            self._last_blocked_at = now
            return False
        _key, published_at = next(iter(self._pending.values()), (None, NEVER))  # the oldest message
        return max(published_at, self._last_blocked_at) + LONGEST_CONFIRM_SECONDS < now

    def _confirm(self, number: int, multiple: bool) -> None:
        for confirmed_number in self._open_numbers(number, multiple):
            key, _published_at = self._pending.pop(confirmed_number)
            if self._returned and str(confirmed_number) in self._returned:
                self._returned.remove(str(confirmed_number))
                self.refused.append(key)
            else:
                self.confirmed.append(key)

    def _refuse(self, number: int, multiple: bool) -> None:
        for refused_number in self._open_numbers(number, multiple):
            key, _published_at = self._pending.pop(refused_number)
            self.refused.append(key)

    def _return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """Remember a message that the broker returns. The broker confirms the message afterwards."""
        self._returned.add(message.properties["message_id"])

    def _open_numbers(self, number: int, multiple: bool) -> list[int]:
        """Return the number if its message is open; with `multiple`, also the numbers of open messages before it."""
        if multiple:
            return list(takewhile(number.__ge__, self._pending))
        return [number] if number in self._pending else []


class Deliveries:
    """The unacknowledged deliveries of one channel. The broker numbers deliveries in ascending order."""

    def __init__(self) -> None:
        # For each delivery, by its number: its size, and how many of its parts are not acknowledged.
        self._pending: dict[int, tuple[int, int]] = {}
        self.size = 0
        """The total number of bytes of these deliveries."""

    def add(self, tag: int, size: int = 0, *, parts: int = 1) -> None:
        """Record a delivery of `size` bytes that contains `parts` outcomes."""
        self._pending[tag] = size, parts
        self.size += size

    def acknowledge(self, tags: Iterable[int]) -> list[tuple[int, bool]]:
        """Record that one part of each delivery is acknowledged. Return the numbers to acknowledge at the broker.

        Each number comes with a flag: whether it stands for all numbers before it too. Unknown numbers are ignored,
        because they belong to an earlier connection, and their messages come again under other numbers.
        """
        acknowledged_tags: set[int] = set()
        for tag in filter(self._pending.__contains__, tags):
            size, parts_left = self._pending[tag]
            self._pending[tag] = size, parts_left - 1
            if parts_left <= 1:
                acknowledged_tags.add(tag)
        leading_tags = list(takewhile(acknowledged_tags.__contains__, self._pending))
        for tag in acknowledged_tags:
            size, _parts = self._pending.pop(tag)
            self.size -= size
        return [
            *((tag, True) for tag in leading_tags[-1:]),  # the last of them stands for all of them
            *((tag, False) for tag in sorted(acknowledged_tags.difference(leading_tags))),
        ]

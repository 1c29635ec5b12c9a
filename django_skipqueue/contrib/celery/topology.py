"""The exchanges and queues of RabbitMQ between a relay and Celery's workers.

Invariant: a job's message is in one place until somebody has what it says. A queue drops none: it refuses what is too
much, and what waits too long or is delivered too often goes to the back queue of the job's database.

The topology can also be written as definitions that RabbitMQ imports, for whoever declares it instead of relays. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import amqp

from .carrier import CarrierMisconfigured

BACK_EXCHANGE = "skipqueue.back"
"""Gets all dead letters of the carried queues, and gives each to the back queue of its database."""

FOREIGN = "skipqueue.foreign"
"""The exchange and the queue for dead letters of other Celery tasks: without a queue they would stop up the others."""

FOREIGN_KEPT = 10_000
"""Messages in that queue at most."""

DATABASE_HEADER = "skipqueue-database"
"""The header of a job's message with the home of its outcome."""

DELIVERY_LIMIT = 2
"""How often a message is delivered again after its worker has died."""

NO_LIMIT = 1_000_000_000
"""RabbitMQ 4 would drop a message of ours after 20 deliveries."""

CARRIED_QUEUE: Mapping[str, Any] = {
    "x-queue-type": "quorum",
    "x-delivery-limit": DELIVERY_LIMIT,
    "x-dead-letter-exchange": BACK_EXCHANGE,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
"""The arguments of a queue that Celery's workers take jobs from."""

OWN_QUEUE: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT}
"""The arguments of the queues that relays take outcomes and jobs from."""

FOREIGN_QUEUE: Mapping[str, Any] = {"x-queue-type": "quorum", "x-max-length": FOREIGN_KEPT}
"""The arguments of the queue `FOREIGN`: the oldest messages go."""

EXCHANGES: Mapping[str, tuple[str, dict[str, str]]] = {
    FOREIGN: ("fanout", {}),
    BACK_EXCHANGE: ("headers", {"alternate-exchange": FOREIGN}),
}
"""The type and the arguments of each exchange, in the order in which they are declared."""


def outcome_queue(home: str) -> str:
    return f"skipqueue.outcomes.{home}"


def back_queue(home: str) -> str:
    """The queue for the jobs of this home that come back without an outcome."""
    return f"skipqueue.back.{home}"


def queues_of(carried: Iterable[str], home: str) -> dict[str, Mapping[str, Any]]:
    """The arguments of each queue that the relays of this home use. carried: Celery's queues."""
    own = {FOREIGN: FOREIGN_QUEUE, outcome_queue(home): OWN_QUEUE, back_queue(home): OWN_QUEUE}
    return {**own, **dict.fromkeys(carried, CARRIED_QUEUE)}


def bindings_of(home: str) -> list[tuple[str, str, dict[str, str]]]:
    """The exchange, the queue and the arguments of each binding."""
    return [
        (FOREIGN, FOREIGN, {}),
        (BACK_EXCHANGE, back_queue(home), {"x-match": "all", DATABASE_HEADER: home}),
    ]


def declare(channel: Any, carried: Iterable[str], home: str, *, create: bool) -> None:
    """Create what is lacking, or only check that it is there. Raises `CarrierMisconfigured`."""
    options: dict[str, Any] = {"passive": not create, "durable": True, "auto_delete": False}
    for name, (kind, arguments) in EXCHANGES.items():
        with _explained(f"exchange {name!r}", f"type {kind!r}", arguments, create):
            channel.exchange_declare(name, kind, arguments=arguments, **options)
    for name, needed in queues_of(carried, home).items():
        with _explained(f"queue {name!r}", "durable", needed, create):
            channel.queue_declare(name, arguments=dict(needed), **options)
    if create:
        for exchange, queue, match in bindings_of(home):
            channel.queue_bind(queue, exchange, arguments=match)


@contextmanager
def _explained(what: str, how: str, arguments: Mapping[str, Any], create: bool) -> Iterator[None]:
    """Say what the broker needs, where it refuses a declaration."""
    needs = f"the {what}, {how}, with the arguments {dict(arguments)}"
    try:
        yield
    except amqp.PreconditionFailed as error:
        raise CarrierMisconfigured(
            f"The {what} is there with other arguments. The carrier needs {needs}. "
            'Delete it once it is empty, or name another queue in QUEUES. With "DECLARE": False the arguments are '
            f"not checked: then it is yours to give the queue what it needs. The broker says: {error.reply_text}"
        ) from error
    except amqp.NotFound as error:
        told = (
            f"The broker cannot declare {needs}."
            if create
            else f'There is no {what}. "DECLARE" is False: create {needs}.'
        )
        raise CarrierMisconfigured(f"{told} The broker says: {error.reply_text}") from error
    except amqp.AccessRefused as error:
        raise CarrierMisconfigured(
            f"The broker's user may not declare {needs}. Give it the right to, or create all that "
            f'`manage.py runrelay --show-topology` prints, and set "DECLARE": False. The broker says: '
            f"{error.reply_text}"
        ) from error


def definitions(carried: Iterable[str], homes: Iterable[str], *, vhost: str, user: str) -> dict[str, Any]:
    """What `rabbitmqctl import_definitions` takes. carried: Celery's queues."""
    carried, homes = list(carried), list(homes)
    queues = {name: needed for home in homes for name, needed in queues_of(carried, home).items()}
    bindings = {binding[:2]: binding for home in homes for binding in bindings_of(home)}
    return {
        "exchanges": [
            {
                "name": name,
                "vhost": vhost,
                "type": kind,
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": arguments,
            }
            for name, (kind, arguments) in EXCHANGES.items()
        ],
        "queues": [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": dict(needed)}
            for name, needed in queues.items()
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

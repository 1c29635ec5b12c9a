"""The exchanges and queues of RabbitMQ between a relay and Celery's workers.

Invariant: a job's message is in one place until somebody has what it says. A queue drops none: it refuses what is too
much, and what waits too long or is delivered too often goes to the back queue of the job's database.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import amqp

from ..carrier import CarrierMisconfigured

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

FOREIGN_QUEUE: Mapping[str, Any] = {"x-max-length": FOREIGN_KEPT}


def outcome_queue(home: str) -> str:
    return f"skipqueue.outcomes.{home}"


def back_queue(home: str) -> str:
    """The queue for the jobs of this home that come back without an outcome."""
    return f"skipqueue.back.{home}"


def declare(channel: Any, queues: Iterable[str], home: str, *, create: bool) -> None:
    """Create what is lacking, or only check that it is there. Raises `CarrierMisconfigured`."""
    _declare_exchange(channel, FOREIGN, "fanout", {}, create)
    _declare_exchange(channel, BACK_EXCHANGE, "headers", {"alternate-exchange": FOREIGN}, create)
    own = {FOREIGN: FOREIGN_QUEUE, outcome_queue(home): OWN_QUEUE, back_queue(home): OWN_QUEUE}
    for name, arguments in [*own.items(), *((name, CARRIED_QUEUE) for name in queues)]:
        with _explained("queue", name, "durable", arguments, create):
            channel.queue_declare(name, passive=not create, durable=True, auto_delete=False, arguments=dict(arguments))
    if create:
        channel.queue_bind(FOREIGN, FOREIGN)
        match = {"x-match": "all", DATABASE_HEADER: home}
        channel.queue_bind(back_queue(home), BACK_EXCHANGE, arguments=match)


def _declare_exchange(channel: Any, name: str, kind: str, arguments: dict[str, str], create: bool) -> None:
    with _explained("exchange", name, f"type {kind!r}", arguments, create):
        channel.exchange_declare(name, kind, passive=not create, durable=True, auto_delete=False, arguments=arguments)


class _explained:  # noqa: N801 (used as a function)
    """Says what the broker needs, where it refuses a declaration."""

    def __init__(self, kind: str, name: str, how: str, arguments: Mapping[str, Any], create: bool) -> None:
        self._needs = f"the {kind} {name!r}, {how}, with the arguments {dict(arguments)}"
        self._name, self._kind, self._create = name, kind, create

    def __enter__(self) -> None:
        """Begin a declaration."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, amqp.PreconditionFailed):
            raise CarrierMisconfigured(
                f"The {self._kind} {self._name!r} is there with other arguments. The carrier needs {self._needs}. "
                'Delete it once it is empty, or name another queue in QUEUES. With "DECLARE": False the arguments are '
                "not checked: then it is yours to give the queue what it needs. "
                f"The broker says: {error.reply_text}"
            ) from error
        if isinstance(error, amqp.NotFound):
            raise CarrierMisconfigured(
                f'There is no {self._kind} {self._name!r}, and "DECLARE" is False. Create {self._needs}.'
            ) from error
        if isinstance(error, amqp.AccessRefused):
            raise CarrierMisconfigured(
                f"The broker's user may not declare {self._needs}. Give it the right to, or create all of them and set "
                f'"DECLARE": False. The broker says: {error.reply_text}'
            ) from error

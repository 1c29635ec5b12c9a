"""The carrier that lets Celery's workers run jobs, through RabbitMQ.

It has two connections, one to publish and one to consume. A broker that lacks memory or disk space stops reading from
connections that publish, so it would not read acknowledgements from such a connection either.

A job counts as confirmed once the broker has acknowledged its message without returning it. The carrier acknowledges
the broker's messages only when the relay says so; otherwise the broker sends them again.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any

import amqp

from ...values.records import ClaimedJob, LeaseRef
from . import rabbitmq, wire
from .carrier import CarrierUnreachable, Taken, TooLarge
from .rabbitmq import HEARTBEAT_SECONDS, LONGEST_CONFIRM_SECONDS, AmqpLink, Confirms, Deliveries

if TYPE_CHECKING:
    from .settings import CarrierSettings

MOST_PREFETCHED_DELIVERIES = 2_000
"""The maximum number of unacknowledged outcomes and returned jobs that the broker sends."""

MOST_DELIVERED = 64_000_000
"""If unacknowledged outcomes and returned jobs have this many bytes, the relay does not read more for now."""

CELERY_TASK = "django_skipqueue.run"
"""The name of the Celery task that runs jobs."""


class CeleryCarrier:
    def __init__(self, settings: "CarrierSettings", app: Any, *, home: str) -> None:
        self.name, self.home = settings.name, home
        self._app, self._queues, self._declare = app, settings.queues, settings.declare
        self._expiration = str(int(settings.wait * 1000))  # in milliseconds
        self._max_message_size = settings.max_message_size
        self.publishing = AmqpLink(app, heartbeat=HEARTBEAT_SECONDS)
        self.consuming = AmqpLink(app, heartbeat=HEARTBEAT_SECONDS)
        self.links = self.publishing, self.consuming
        self._selector: DefaultSelector | None = None
        self._watches_deliveries = False
        self.waiting: deque[tuple[ClaimedJob, bytes]] = deque()  # jobs to publish once the broker is not blocked
        self._confirms: Confirms[LeaseRef]
        self._delivery_channel: Any = None  # the channel of the deliveries
        self._revoke_channel: Any = None  # the channel for orders to Celery's workers to drop jobs
        self.deliveries = Deliveries()
        self._taken = Taken()
        self._pending_error: CarrierUnreachable | None = None  # raised by the next `take` that has nothing to return

    def connect(self) -> None:
        self._pending_error, self._taken = None, Taken()
        self.waiting.clear()
        for link in self.links:
            link.connect()
        with self.consuming.translated_errors():
            channel = self._delivery_channel = self.consuming.channel()
            rabbitmq.declare(channel, set(self._queues.values()), self.home, create=self._declare)
        with self.publishing.translated_errors():
            self._confirms = Confirms(self.publishing.channel())
            self._revoke_channel = None
            if self._declare:  # a separate channel, because the broker would confirm the orders on the other one
                self._revoke_channel = self.publishing.channel()
                self._app.control.mailbox.exchange(self._revoke_channel).declare()
        with self.consuming.translated_errors():
            self.deliveries = Deliveries()
            channel.basic_qos(0, MOST_PREFETCHED_DELIVERIES, False)
            channel.basic_consume(rabbitmq.outcome_queue(self.home), callback=self._receive_outcomes)
            channel.basic_consume(rabbitmq.back_queue(self.home), callback=self._receive_returned_job)
        self._selector, self._watches_deliveries = DefaultSelector(), False
        self._selector.register(self.publishing.fileno(), EVENT_READ)
        self._watch_deliveries()

    def definitions(self, homes: Collection[str]) -> dict[str, Any]:
        """Return the queues that relays and Celery's workers need, for `rabbitmqctl import_definitions`."""
        link = self.publishing
        return rabbitmq.definitions(sorted({*self._queues.values()}), homes, vhost=link.vhost, user=link.user)

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        """Send the jobs: see `Carrier.publish`. Raises `KeyError` for a job in a queue without a carrier."""
        largest_size = self.publishing.largest_message(self._max_message_size)
        too_large: list[TooLarge] = []
        for job in jobs:
            # Celery expects three values: the positional arguments, the keyword arguments, and options.
            body = b"".join((b"[[", wire.encode(wire.job_to_wire(job, self.home)), b"],{},{}]"))
            if len(body) > largest_size:
                too_large.append(TooLarge(job, len(body), largest_size))
            else:
                self.waiting.append((job, body))
        if self.waiting:
            self.fileno()  # raises if the connection is not open
            self._publish_waiting()
        return too_large

    def _publish_waiting(self) -> None:
        """Publish waiting jobs until the broker says that it is blocked, because the relay would then wait for it."""
        headers = {"lang": "py", "task": CELERY_TASK, rabbitmq.DATABASE_HEADER: self.home}
        try:
            while self.waiting and not self._pending_error and not self.publishing.is_blocked:
                job, body = self.waiting.popleft()
                id = wire.message_id(self.home, job.ref)
                with self.publishing.translated_errors():
                    self._confirms.publish(
                        job.ref,
                        body,
                        queue=self._queues[job.queue_name],
                        correlation_id=id,
                        expiration=self._expiration,
                        application_headers=headers | {"id": id},
                    )
                if self.publishing.has_input():
                    self.publishing.receive()
        except CarrierUnreachable as error:
            self._pending_error = error

    def take(self) -> Taken:
        """Return what has arrived. If a connection broke, first return confirmed jobs, which must not run twice."""
        self.fileno()  # raises if the connection is not open
        for link, is_enough in ((self.consuming, self._has_enough), (self.publishing, lambda: False)):
            try:
                link.receive(is_enough)
            except CarrierUnreachable as error:
                self._pending_error = self._pending_error or error
        # The publishing link is read last, because a job's confirm may arrive together with its outcome.
        confirms = self._confirms
        self._taken.confirmed, confirms.confirmed = confirms.confirmed, []
        self._taken.refused, confirms.refused = confirms.refused, []
        if confirms.are_late(is_blocked=self.is_blocked):
            self._pending_error = CarrierUnreachable(
                f"The broker has not confirmed a job for {LONGEST_CONFIRM_SECONDS:g} s."
            )
        taken, self._taken = self._taken, Taken()
        if self._pending_error is not None:
            if not taken.confirmed:
                raise self._pending_error
            return Taken(confirmed=taken.confirmed, refused=taken.refused)
        self._publish_waiting()
        self._watch_deliveries()
        return taken

    def acknowledge(self, deliveries: Collection[int]) -> None:
        with self.consuming.translated_errors():
            for tag, is_multiple in self.deliveries.acknowledge(deliveries):
                self._delivery_channel.basic_ack(tag, is_multiple)
        self._watch_deliveries()

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        """Tell Celery's workers to drop the messages of these jobs. Workers without remote control still run them."""
        if refs and self._revoke_channel is not None and not self.is_blocked:
            ids = [wire.message_id(self.home, ref) for ref in refs]
            order = {"method": "revoke", "arguments": {"task_id": ids, "terminate": False}, "destination": None}
            message = amqp.Message(wire.encode(order), content_type="application/json", content_encoding="utf-8")
            with self.publishing.translated_errors():
                self._revoke_channel.basic_publish(message, exchange=self._app.control.mailbox.exchange.name)

    @property
    def is_blocked(self) -> bool:
        return self.publishing.is_blocked

    def fileno(self) -> int:
        if self._selector is None:
            raise CarrierUnreachable("The connection is not open.")
        return int(self._selector.fileno())

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        for link in self.links:
            link.close()

    def _has_enough(self) -> bool:
        return self.deliveries.size >= MOST_DELIVERED

    def _watch_deliveries(self) -> None:
        should_watch = not self._has_enough()
        if self._selector is None or should_watch == self._watches_deliveries:
            return
        self._watches_deliveries = should_watch
        if should_watch:
            self._selector.register(self.consuming.fileno(), EVENT_READ)
        else:
            self._selector.unregister(self.consuming.fileno())

    # Callbacks, called while the consuming link receives

    def _receive_outcomes(self, message: Any) -> None:
        tag, id = message.delivery_tag, message.properties.get("correlation_id")
        parts = wire.add_outcomes(self._taken, tag, message.body, id, now=time.monotonic())
        self.deliveries.add(tag, len(message.body), parts=parts)

    def _receive_returned_job(self, message: Any) -> None:
        tag, properties = message.delivery_tag, message.properties
        self.deliveries.add(tag, len(message.body))
        headers = properties.get("application_headers")
        self._taken.jobs.append(wire.returned_job(tag, message.body, properties.get("correlation_id"), headers))

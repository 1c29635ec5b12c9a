"""A carrier whose jobs run in Celery's workers, behind RabbitMQ.

It has two connections. A broker that lacks memory or space reads nothing more from a connection that publishes, and its
acknowledgements would wait there as well: so outcomes come by the other one.

Invariant: a job counts as confirmed once the broker has acknowledged its message and has not returned it. A message of
the broker is acknowledged when the relay says so, and comes again otherwise.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from ..values.records import ClaimedJob, LeaseRef
from . import reading, wire
from .carrier import CarrierUnreachable, Taken, TooLarge
from .rabbitmq import topology
from .rabbitmq.amqp_link import AmqpLink
from .rabbitmq.deliveries import Deliveries
from .rabbitmq.frames import Envelope
from .rabbitmq.message_limit import LARGEST, MessageLimit
from .rabbitmq.unconfirmed import Unconfirmed

PREFETCH = 2_000
"""Outcomes, and jobs that come back, which the broker sends ahead of their acknowledgement."""

MOST_DELIVERED = 64_000_000
"""Bytes of those outcomes and jobs: the relay reads no more until it has acknowledged some."""

CONFIRM_SECONDS = 60.0
"""A broker that has not confirmed a job for so long, although it is not blocked, counts as unreachable."""

TASK = "django_skipqueue.run"
"""The name of the Celery task that runs jobs."""


class CeleryCarrier:
    def __init__(
        self,
        name: str,
        app: Any,
        *,
        home: str,
        queues: Mapping[str, str],
        wait: float,
        declare: bool = True,
        max_message_size: int = LARGEST,
    ) -> None:
        """queues: our queues, each with Celery's. wait: the seconds that a job may wait with the broker."""
        self.name = name
        self._app = app
        self.home = home
        self._queues = dict(queues)
        self._expiration_ms = int(wait * 1000)
        self._declare = declare
        self._max_message_size = max_message_size
        self._limit = MessageLimit()
        self._publishing = AmqpLink(app.connection_for_write())
        self._consuming = AmqpLink(app.connection_for_write())
        self._selector: DefaultSelector | None = None
        self._watches_deliveries = False
        self._envelopes: dict[str, Envelope] = {}
        self._revoking: Envelope | None = None
        self._unconfirmed = Unconfirmed()
        self._deliveries = Deliveries()
        self._taken = Taken()
        self._broken: CarrierUnreachable | None = None  # raised by the next `take`

    def connect(self) -> None:
        self._broken = None
        for link in self._links:
            link.connect()
        with self._consuming.translated_errors():
            channel = self._consuming.channel()
            topology.declare(channel, set(self._queues.values()), self.home, create=self._declare)
        with self._publishing.translated_errors():
            self._open_publishing()
        with self._consuming.translated_errors():
            self._open_consuming(channel)
        self._selector, self._watches_deliveries = DefaultSelector(), False
        self._selector.register(self._publishing.fileno(), EVENT_READ)
        self._watch_deliveries()

    @property
    def _links(self) -> tuple[AmqpLink, AmqpLink]:
        return self._publishing, self._consuming

    def _open_publishing(self) -> None:
        channel = self._publishing.channel()
        self._unconfirmed, self._taken = Unconfirmed(), Taken()
        self._make_envelopes(channel.channel_id)
        channel.events["basic_ack"].add(self._confirmed)
        channel.events["basic_nack"].add(self._refused)
        channel.events["basic_return"].add(self._returned)
        channel.confirm_select()
        if self._declare:
            self._make_revoking(self._publishing.channel())
        self._publishing.start()

    def _open_consuming(self, channel: Any) -> None:
        self._deliveries = Deliveries(channel.channel_id)
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(topology.outcome_queue(self.home), callback=self._outcomes)
        channel.basic_consume(topology.back_queue(self.home), callback=self._came_back)
        self._consuming.start()

    def publish(self, jobs: Sequence[ClaimedJob]) -> Sequence[TooLarge]:
        """See `Carrier.publish`. Raises `KeyError` for a job of a queue that is not carried."""
        home, most = self.home, self._limit.most(self._max_message_size)
        frames: list[bytes] = []
        refs: list[LeaseRef] = []
        too_large: list[TooLarge] = []
        for job in jobs:
            body = b"".join((b"[[", wire.encode(wire.job_to_wire(job, home)), b"],{},{}]"))
            if len(body) > most:
                too_large.append(TooLarge(job, len(body), most))
                continue
            frames.append(self._envelopes[job.queue_name].frames(wire.message_id(home, job.ref), body))
            refs.append(job.ref)
        if frames:
            self._unconfirmed.add(refs, time.monotonic())
            self._publishing.send(b"".join(frames))
        return too_large

    def take(self) -> Taken:
        """See `Carrier.take`. A connection that breaks first gives what it had confirmed: that must not run twice."""
        if self._broken:
            raise self._broken
        try:
            try:
                self._consuming.receive(self._has_enough)
                self._watch_deliveries()
            finally:
                self._publishing.receive()  # last, and in any case: the confirm of a job comes with its outcome
        except CarrierUnreachable as error:
            self._limit.learn(error)
            if not self._taken.confirmed:
                raise
            self._broken = error
            return Taken(confirmed=self._taken.confirmed, refused=self._taken.refused)
        if self.is_blocked:
            self._unconfirmed.excuse(time.monotonic())
        elif self._unconfirmed.oldest + CONFIRM_SECONDS < time.monotonic():
            raise CarrierUnreachable(f"The broker has not confirmed a job for {CONFIRM_SECONDS:g} s.")
        taken, self._taken = self._taken, Taken()
        return taken

    def acknowledge(self, deliveries: Collection[int]) -> None:
        if frames := self._deliveries.acknowledge(deliveries):
            self._consuming.send(frames)
            self._watch_deliveries()

    def revoke(self, refs: Collection[LeaseRef]) -> None:
        """See `Carrier.revoke`. Celery's workers with remote control drop these messages, if they have them."""
        if refs and self._revoking is not None:
            ids = [wire.message_id(self.home, ref) for ref in refs]
            order = {"method": "revoke", "arguments": {"task_id": ids, "terminate": False}, "destination": None}
            self._publishing.send(self._revoking.frames("", wire.encode(order)))

    @property
    def is_blocked(self) -> bool:
        return self._publishing.is_blocked

    def fileno(self) -> int:
        if self._selector is None:
            raise CarrierUnreachable("The connection is not open.")
        return int(self._selector.fileno())

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        for link in self._links:
            link.close()

    def _make_envelopes(self, publishing: int) -> None:
        frame_max = self._publishing.frame_max
        headers = {"lang": "py", "task": TASK, topology.DATABASE_HEADER: self.home}
        make = partial(Envelope, publishing, headers=headers, id_header=True, frame_max=frame_max)
        self._envelopes = {
            ours: make(routing_key=queue, expiration_ms=self._expiration_ms) for ours, queue in self._queues.items()
        }

    def _make_revoking(self, channel: Any) -> None:
        """Use a channel without confirms: these orders would count there."""
        exchange = self._app.control.mailbox.exchange
        exchange(channel).declare()
        self._revoking = Envelope(
            channel.channel_id,
            exchange=exchange.name,
            routing_key="",
            headers={},
            mandatory=False,
            frame_max=self._publishing.frame_max,
        )

    def _has_enough(self) -> bool:
        return self._deliveries.size >= MOST_DELIVERED

    def _watch_deliveries(self) -> None:
        watches = not self._has_enough()
        if self._selector is None or watches == self._watches_deliveries:
            return
        self._watches_deliveries = watches
        if watches:
            self._selector.register(self._consuming.fileno(), EVENT_READ)
        else:
            self._selector.unregister(self._consuming.fileno())

    # Called while the links receive

    def _confirmed(self, tag: int, multiple: bool) -> None:
        confirmed, refused = self._unconfirmed.settle(tag, multiple)
        self._taken.confirmed += confirmed
        self._taken.refused += refused

    def _refused(self, tag: int, multiple: bool) -> None:
        for refs in self._unconfirmed.settle(tag, multiple):
            self._taken.refused += refs

    def _returned(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        ref = wire.lease_ref_of(message.properties.get("correlation_id"))
        if ref is not None:
            self._unconfirmed.note_returned(ref)

    def _outcomes(self, message: Any) -> None:
        tag, id = message.delivery_tag, message.properties.get("correlation_id")
        parts = reading.outcomes(self._taken, tag, message.body, id, now=time.monotonic())
        self._deliveries.add(tag, len(message.body), parts=parts)

    def _came_back(self, message: Any) -> None:
        tag, properties = message.delivery_tag, message.properties
        self._deliveries.add(tag, len(message.body))
        headers = properties.get("application_headers")
        self._taken.jobs.append(reading.returned(tag, message.body, properties.get("correlation_id"), headers))

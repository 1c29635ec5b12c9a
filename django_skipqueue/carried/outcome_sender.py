"""Sends the outcomes of a process of Celery to the broker.

Outcomes that wait at the same time are sent together, by the first of the threads that wait for them.

Invariant: `send` returns once the broker has confirmed the outcome. One that the broker never takes is replaced by a
failure that says so.
"""

import threading
import time
from collections import deque
from typing import Any

from ..events import carried_logs
from ..relay import wire
from ..relay.carrier import CarrierMisconfigured, CarrierUnreachable
from ..relay.rabbitmq import topology
from ..relay.rabbitmq.amqp_link import AmqpLink
from ..relay.rabbitmq.confirms import Confirms
from ..relay.rabbitmq.message_limit import MessageLimit
from ..values.records import Attempt
from . import too_large

FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Seconds until the broker is tried again, doubled after each try."""

CONFIRM_SECONDS = 60.0
"""A broker that has not confirmed an outcome for so long, although it is not blocked, is connected to again."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at whether the confirm of an outcome takes too long."""

SMALL = 16_384
"""Bytes of a message that every broker takes."""


class Outgoing:
    """An outcome on its way."""

    def __init__(self, outcome: wire.EncodedOutcome) -> None:
        self.outcome = outcome
        self.is_confirmed = False


class OutcomeSender:
    """May be used by several threads at once."""

    def __init__(self, app: Any, *, who: str) -> None:
        self._link = AmqpLink(app)
        self._limit = MessageLimit()
        self._who = who
        self._confirms: Confirms[Outgoing]
        self._new: deque[Outgoing] = deque()
        self._sending = threading.Lock()  # held by the thread that sends for all
        self._is_trouble_logged = False

    def send(self, attempt: Attempt, home: str) -> None:
        """Send the outcome of this attempt, and return once the broker has confirmed it, however long that takes."""
        outgoing = Outgoing(wire.encode_outcome(attempt, home))
        self._new.append(outgoing)
        with self._sending:
            delay = FIRST_DELAY
            while not outgoing.is_confirmed:
                was_open = self._link.is_open
                try:
                    self._send_new()
                except (CarrierUnreachable, CarrierMisconfigured) as error:
                    self._link.close()
                    self._limit.learn(error)
                    if not was_open:  # else the broker may have closed it while no outcome was sent
                        self._log_trouble(error)
                        time.sleep(delay)
                        delay = min(delay * 2, LONGEST_DELAY)

    def _send_new(self) -> None:
        """Send all outcomes, and return once the broker has confirmed them."""
        batch = [self._new.popleft() for _ in range(len(self._new))]
        try:
            if not self._link.is_open:
                self._connect()
            for outgoing in batch:
                self._publish(outgoing)
            while not self._confirms.is_done:
                self._receive()
            self._require_taken()
            self._works()
        finally:
            self._new.extendleft(outgoing for outgoing in reversed(batch) if not outgoing.is_confirmed)

    def _connect(self) -> None:
        self._link.connect()
        with self._link.translated_errors():
            self._confirms = Confirms(self._link.channel())

    def _publish(self, outgoing: Outgoing) -> None:
        if outgoing.outcome.size > SMALL:
            outgoing.outcome = too_large.fitting(outgoing.outcome, self._limit)
        outcome = outgoing.outcome
        queue, body = topology.outcome_queue(outcome.home), wire.join_outcomes([outcome])
        with self._link.translated_errors():
            self._confirms.publish(outgoing, body, queue=queue, correlation_id=outcome.id)

    def _receive(self) -> None:
        if self._link.has_come(LOOK_SECONDS):
            try:
                self._link.receive()
            finally:
                while self._confirms.confirmed:
                    self._confirms.confirmed.pop().is_confirmed = True
        elif self._link.is_blocked:
            self._confirms.excuse()
        elif self._confirms.oldest + CONFIRM_SECONDS < time.monotonic():
            raise CarrierUnreachable(f"The broker has not confirmed an outcome for {CONFIRM_SECONDS:g} s.")

    def _require_taken(self) -> None:
        if self._confirms.refused:
            queues = {topology.outcome_queue(outgoing.outcome.home) for outgoing in self._confirms.refused}
            raise CarrierUnreachable(f"The broker does not take it: {', '.join(sorted(queues))} is full, or gone.")

    def _log_trouble(self, error: Exception) -> None:
        if not self._is_trouble_logged:
            self._is_trouble_logged = True
            carried_logs.outcomes_wait(self._who, error)

    def _works(self) -> None:
        if self._is_trouble_logged:
            self._is_trouble_logged = False
            carried_logs.outcomes_sent(self._who)

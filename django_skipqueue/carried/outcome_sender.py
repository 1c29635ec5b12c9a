"""Sends the outcomes of a process of Celery to the broker.

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
from ..runtime.wakeup import Wakeup
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
    """May be used by several threads at once. One of those that wait takes the turns for all."""

    def __init__(self, app: Any, *, who: str) -> None:
        self._link = AmqpLink(app)
        self._limit = MessageLimit()
        self._who = who
        self._new: deque[Outgoing] = deque()
        self._wakeup = Wakeup()
        self._turns = threading.Lock()  # held by the thread that takes the turns; it guards all the following
        self._confirms: Confirms[Outgoing] | None = None
        self._delay = FIRST_DELAY
        self._is_trouble_logged = False

    def send(self, attempt: Attempt, home: str) -> None:
        """Send the outcome of this attempt, and return once the broker has confirmed it, however long that takes."""
        self.send_encoded(wire.encode_outcome(attempt, home))

    def send_encoded(self, outcome: wire.EncodedOutcome) -> None:
        """Send this, and return once the broker has confirmed it."""
        outgoing = Outgoing(outcome)
        self._new.append(outgoing)
        self._wakeup.call()
        with self._turns:
            while not outgoing.is_confirmed:
                self._turn()

    def _turn(self) -> None:
        """Publish what is new, wait for an answer of the broker or another outcome, and take the answers."""
        was_open = self._confirms is not None
        try:
            confirms = self._confirms = self._confirms or self._connect()
            while self._new:
                self._publish(confirms)
            self._wakeup.wait(LOOK_SECONDS, unless=lambda: self._new, files=[self._link.fileno()])
            try:
                self._link.receive()
            finally:
                self._note_confirmed(confirms)
            self._require_answers(confirms)
        except (CarrierUnreachable, CarrierMisconfigured) as error:
            self._broke(error)
            if not was_open:  # else the broker may have closed the connection while no outcome was sent
                self._rest(error)

    def _connect(self) -> Confirms[Outgoing]:
        self._link.connect()
        with self._link.translated_errors():
            return Confirms(self._link.channel())

    def _publish(self, confirms: Confirms[Outgoing]) -> None:
        outgoing = self._new[0]
        if outgoing.outcome.size > SMALL:
            outgoing.outcome = too_large.fitting(outgoing.outcome, self._limit)
        outcome = outgoing.outcome
        queue, body = topology.outcome_queue(outcome.home), wire.join_outcomes([outcome])
        with self._link.translated_errors():
            confirms.publish(outgoing, body, queue=queue, correlation_id=outcome.id)
        self._new.popleft()

    def _note_confirmed(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.confirmed:
            self._works()
        while confirms.confirmed:
            confirms.confirmed.pop().is_confirmed = True

    def _require_answers(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.refused:
            queues = sorted({topology.outcome_queue(outgoing.outcome.home) for outgoing in confirms.refused})
            raise CarrierUnreachable(f"The broker does not take it: {', '.join(queues)} is full, or gone.")
        if self._link.is_blocked:
            confirms.excuse()
        elif confirms.oldest + CONFIRM_SECONDS < time.monotonic():
            raise CarrierUnreachable(f"The broker has not confirmed an outcome for {CONFIRM_SECONDS:g} s.")

    def _broke(self, error: Exception) -> None:
        """Close the connection. What was not confirmed is sent again: the relay drops an outcome that comes twice."""
        self._limit.learn(error)
        self._link.close()  # takes answers of the broker that come meanwhile
        if self._confirms is not None:
            self._note_confirmed(self._confirms)
            self._new.extendleft(reversed([*self._confirms.refused, *self._confirms.unsettled]))
            self._confirms = None

    def _rest(self, error: Exception) -> None:
        self._log_trouble(error)
        time.sleep(self._delay)
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _log_trouble(self, error: Exception) -> None:
        if not self._is_trouble_logged:
            self._is_trouble_logged = True
            carried_logs.outcomes_wait(self._who, error)

    def _works(self) -> None:
        self._delay = FIRST_DELAY
        if self._is_trouble_logged:
            self._is_trouble_logged = False
            carried_logs.outcomes_sent(self._who)

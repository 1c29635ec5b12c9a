"""Sends the outcomes of a process of Celery to the broker.

Invariant: `send` returns once the broker has confirmed the outcome. One that the broker never takes is replaced by a
failure that says so.

Invariant: the failure in place of an outcome whose message is too large is smaller than every `MAX_MESSAGE_SIZE` may
be.
"""

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from ...exceptions import MessageTooLarge
from ...values.outcomes import Outcome, error_entry, summary
from ...values.records import Attempt
from ...worker.loop import Wakeup
from . import logs as carried_logs
from . import wire
from .carrier import CarrierMisconfigured, CarrierUnreachable
from .rabbitmq import CONFIRM_SECONDS, LARGEST, AmqpLink, Confirms, outcome_queue
from .settings import carrier_for

KEPT = 1_000
"""Characters of arguments, and of metadata, that are sent back all the same."""


def fitting(outcome: wire.EncodedOutcome, link: AmqpLink) -> wire.EncodedOutcome:
    """The outcome, or what takes its place."""
    attempt = wire.attempt_from_wire(wire.decode(outcome.body), now=time.monotonic())
    carrier = carrier_for(attempt.job.queue_name)
    most = link.most(carrier.max_message_size if carrier else LARGEST)
    if outcome.size <= most:
        return outcome
    return wire.encode_outcome(replaced(attempt, outcome.size, most), outcome.home)


def replaced(attempt: Attempt, size: int, most: int) -> Attempt:
    """The attempt with an outcome that can be sent: a failure that says so, for the task's effects have happened.

    What the task itself has written stays: only the relay does not get the result.
    """
    job, outcome = attempt.job, attempt.outcome
    metadata = job.metadata if len(job.metadata) <= KEPT else "{}"
    lean = wire.lean(job, KEPT)._replace(metadata=metadata)
    if attempt.is_written:
        return attempt._replace(job=lean, outcome=replace(outcome, result=None, error=None, notes=None))
    error = MessageTooLarge(
        f"The job has run ({outcome.status}), but the message of its outcome has {size:,} bytes, and the carrier takes "
        f"{most:,} at most. Return less, such as the key of a row or the name of a file; or raise max_message_size of "
        "RabbitMQ, and MAX_MESSAGE_SIZE of the carrier in SKIPQUEUE['CARRIERS']."
    )
    entry = error_entry(
        error, attempt=job.attempt, worker=attempt.worker, duration_ms=attempt.duration_ms, wait_ms=attempt.wait_ms
    )
    return attempt._replace(job=lean, outcome=Outcome("failed", last_error=summary(error), error=entry))


FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Seconds until the broker is tried again, doubled after each try."""

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
            if self._confirms is None:
                self._link.connect()
                with self._link.translated_errors():
                    self._confirms = Confirms(self._link.channel())
            while self._new:
                self._publish(self._confirms)
            self._wakeup.wait(LOOK_SECONDS, unless=lambda: self._new, files=[self._link.fileno()])
            try:
                self._link.receive()
            finally:
                self._note_confirmed(self._confirms)
            self._require_answers(self._confirms)
        except (CarrierUnreachable, CarrierMisconfigured) as error:
            self._broke()
            if not was_open:  # else the broker may have closed the connection while no outcome was sent
                if not self._is_trouble_logged:
                    self._is_trouble_logged = True
                    carried_logs.outcomes_wait(self._who, error)
                time.sleep(self._delay)
                self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _publish(self, confirms: Confirms[Outgoing]) -> None:
        outgoing = self._new[0]
        if outgoing.outcome.size > SMALL:
            outgoing.outcome = fitting(outgoing.outcome, self._link)
        outcome = outgoing.outcome
        queue, body = outcome_queue(outcome.home), wire.join_outcomes([outcome])
        with self._link.translated_errors():
            confirms.publish(outgoing, body, queue=queue, correlation_id=outcome.id)
        self._new.popleft()

    def _note_confirmed(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.confirmed:
            self._delay = FIRST_DELAY
            if self._is_trouble_logged:
                self._is_trouble_logged = False
                carried_logs.outcomes_sent(self._who)
        while confirms.confirmed:
            confirms.confirmed.pop().is_confirmed = True

    def _require_answers(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.refused:
            queues = sorted({outcome_queue(outgoing.outcome.home) for outgoing in confirms.refused})
            raise CarrierUnreachable(f"The broker does not take it: {', '.join(queues)} is full, or gone.")
        if confirms.are_late(is_blocked=self._link.is_blocked):
            raise CarrierUnreachable(f"The broker has not confirmed an outcome for {CONFIRM_SECONDS:g} s.")

    def _broke(self) -> None:
        """Close the connection. What was not confirmed is sent again: the relay drops an outcome that comes twice."""
        self._link.close()  # takes answers of the broker that come meanwhile
        if self._confirms is not None:
            self._note_confirmed(self._confirms)
            self._new.extendleft(reversed([*self._confirms.refused, *self._confirms.unsettled]))
            self._confirms = None

"""Send the outcomes of jobs from a Celery process to the broker.

`send` returns once the broker has confirmed the outcome. If the broker would never accept an outcome, a failure is sent
instead, whose message is smaller than the smallest `MAX_MESSAGE_SIZE`.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from ...exceptions import MessageTooLarge
from ...values.outcomes import Outcome, error_entry, summary
from ...values.records import Attempt
from ...worker.loop import Wakeup
from . import logs as carried_logs
from . import wire
from .carrier import CarrierMisconfigured, CarrierUnreachable
from .rabbitmq import LARGEST_MESSAGE, LONGEST_CONFIRM_SECONDS, AmqpLink, Confirms, outcome_queue
from .settings import carrier_for

MOST_CHARACTERS_KEPT = 1_000
"""Arguments and metadata up to this number of characters are returned with the failure."""


def fitting_outcome(outcome: wire.EncodedOutcome, link: AmqpLink) -> wire.EncodedOutcome:
    """Return the outcome, or a failure if the outcome's message is too large."""
    attempt = wire.attempt_from_wire(wire.decode(outcome.body), now=time.monotonic())
    carrier = carrier_for(attempt.job.queue_name)
    largest_size = link.largest_message(carrier.max_message_size if carrier else LARGEST_MESSAGE)
    if outcome.size <= largest_size:
        return outcome
    return wire.encode_outcome(_failed_too_large(attempt, outcome.size, largest_size), outcome.home)


def _failed_too_large(attempt: Attempt, size: int, limit: int) -> Attempt:
    """Return the attempt as failed without a retry, because the task has run and must not run again.

    If the task was atomic, its outcome is already in the database, so only the result is removed.
    """
    job, outcome = attempt.job, attempt.outcome
    metadata = job.metadata if len(job.metadata) <= MOST_CHARACTERS_KEPT else "{}"
    small_job = wire.without_large_arguments(job, MOST_CHARACTERS_KEPT)._replace(metadata=metadata)
    if attempt.is_written:
        return attempt._replace(job=small_job, outcome=replace(outcome, result=None, error=None, notes=None))
    error = MessageTooLarge(
        f"The job has run ({outcome.status}), but its outcome needs a message of {size:,} bytes, and the carrier "
        f"accepts at most {limit:,}. Return less, such as the key of a row or the name of a file; or raise RabbitMQ's "
        "max_message_size, and the carrier's MAX_MESSAGE_SIZE in SKIPQUEUE['CARRIERS']."
    )
    entry = error_entry(
        error, attempt=job.attempt, worker=attempt.worker, duration_ms=attempt.duration_ms, wait_ms=attempt.wait_ms
    )
    return attempt._replace(job=small_job, outcome=Outcome("failed", last_error=summary(error), error=entry))


FIRST_SEND_DELAY, LONGEST_SEND_DELAY = 0.2, 15.0
"""Seconds until the next try to reach the broker: the first delay doubles with each try, up to the longest."""

LATE_CONFIRM_CHECK_SECONDS = 1.0
"""Seconds between two checks whether the broker takes too long to confirm an outcome."""

SMALL_MESSAGE = 16_384
"""Every broker accepts messages up to this number of bytes."""


@dataclass(eq=False)
class Outgoing:
    """An outcome that the broker may not have received yet."""

    outcome: wire.EncodedOutcome
    is_confirmed: bool = False


class OutcomeSender:
    """Sends outcomes for several threads at the same time. One of the waiting threads sends for all of them."""

    def __init__(self, app: Any, *, who: str) -> None:
        self.link = AmqpLink(app)
        self._worker_name = who
        self._unsent: deque[Outgoing] = deque()
        self._wakeup = Wakeup()
        self._sending_lock = threading.Lock()  # held by the thread that sends for all; guards the attributes below
        self._confirms: Confirms[Outgoing] | None = None
        self._delay = FIRST_SEND_DELAY
        self._is_failure_logged = False

    def send(self, attempt: Attempt, home: str) -> None:
        """Send an attempt's outcome, and return once the broker has confirmed it, however long that takes."""
        self.send_encoded(wire.encode_outcome(attempt, home))

    def send_encoded(self, outcome: wire.EncodedOutcome) -> None:
        """Send an outcome that is already encoded: see `send`."""
        outgoing = Outgoing(outcome)
        self._unsent.append(outgoing)
        self._wakeup.call()
        with self._sending_lock:
            while not outgoing.is_confirmed:
                self._send_and_receive()

    def _send_and_receive(self) -> None:
        """Publish new outcomes, wait for the broker or for another outcome, and receive confirms."""
        was_open = self._confirms is not None
        try:
            if self._confirms is None:
                self.link.connect()
                with self.link.translated_errors():
                    self._confirms = Confirms(self.link.channel())
            while self._unsent:
                self._publish(self._confirms)
            self._wakeup.wait(LATE_CONFIRM_CHECK_SECONDS, unless=lambda: self._unsent, files=[self.link.fileno()])
            try:
                self.link.receive()
            finally:
                self._note_confirmed(self._confirms)
            self._raise_if_refused_or_late(self._confirms)
        except (CarrierUnreachable, CarrierMisconfigured) as error:
            self._close_connection()
            if not was_open:  # otherwise the broker may just have closed an idle connection
                if not self._is_failure_logged:
                    self._is_failure_logged = True
                    carried_logs.outcomes_wait(self._worker_name, error)
                time.sleep(self._delay)
                self._delay = min(self._delay * 2, LONGEST_SEND_DELAY)

    def _publish(self, confirms: Confirms[Outgoing]) -> None:
        outgoing = self._unsent[0]
        if outgoing.outcome.size > SMALL_MESSAGE:
            outgoing.outcome = fitting_outcome(outgoing.outcome, self.link)
        outcome = outgoing.outcome
        queue, body = outcome_queue(outcome.home), wire.join_outcomes([outcome])
        with self.link.translated_errors():
            confirms.publish(outgoing, body, queue=queue, correlation_id=outcome.id)
        self._unsent.popleft()

    def _note_confirmed(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.confirmed:
            self._delay = FIRST_SEND_DELAY
            if self._is_failure_logged:
                self._is_failure_logged = False
                carried_logs.outcomes_sent(self._worker_name)
        while confirms.confirmed:
            confirms.confirmed.pop().is_confirmed = True

    def _raise_if_refused_or_late(self, confirms: Confirms[Outgoing]) -> None:
        if confirms.refused:
            queues = sorted({outcome_queue(outgoing.outcome.home) for outgoing in confirms.refused})
            raise CarrierUnreachable(
                f"The broker refuses the outcome, because {', '.join(queues)} is full or does not exist."
            )
        if confirms.are_late(is_blocked=self.link.is_blocked):
            raise CarrierUnreachable(f"The broker has not confirmed an outcome for {LONGEST_CONFIRM_SECONDS:g} s.")

    def _close_connection(self) -> None:
        """Close the connection, and queue unconfirmed outcomes again. The relay drops an outcome that comes twice."""
        self.link.close()  # this also receives the confirms that have just arrived
        if self._confirms is not None:
            self._note_confirmed(self._confirms)
            self._unsent.extendleft(reversed([*self._confirms.refused, *self._confirms.unsettled]))
            self._confirms = None

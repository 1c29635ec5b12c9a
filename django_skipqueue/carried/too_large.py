"""What takes the place of an outcome whose message is larger than the broker takes. Pure, but for the settings.

Invariant: it is smaller than every `MAX_MESSAGE_SIZE` may be.
"""

import time
from dataclasses import replace

from ..conf import settings
from ..exceptions import MessageTooLarge
from ..relay import wire
from ..relay.rabbitmq.message_limit import LARGEST, MessageLimit
from ..setting_forms.carriers import carrier_of
from ..values.outcomes import Outcome, error_entry, summary
from ..values.records import Attempt

KEPT = 1_000
"""Characters of arguments, and of metadata, that are sent back all the same."""


def most_for(queue_name: str) -> int:
    """How many bytes a message about a job of this queue may have, by the settings of this process."""
    carrier = carrier_of(queue_name, settings.carriers)
    return carrier.max_message_size if carrier else LARGEST


def fitting(outcome: wire.EncodedOutcome, limit: MessageLimit) -> wire.EncodedOutcome:
    """The outcome, or what takes its place."""
    attempt = wire.attempt_from_wire(wire.decode(outcome.body), now=time.monotonic())
    most = limit.most(most_for(attempt.job.queue_name))
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

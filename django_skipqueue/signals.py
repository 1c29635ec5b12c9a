"""The events of the queue, as Django signals.

Each event is sent with `send_robust`: a receiver that raises is logged and harms nothing. Sender is the task's name
(`job_…`, `lease_lost`) or the worker's (`worker_…`), so that a receiver can be connected for one task alone. Events
about an outcome are sent after the outcome has been committed.
"""

import contextlib
import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django_skipqueue")

job_deferred = Signal()
"""Jobs were inserted; workers see them once the caller's transaction commits. Carries `queue_name`, `job_ids`."""

job_started = Signal()
"""An attempt begins. Sent in the thread that runs it. Carries `job` (a `ClaimedJob`), `worker` (its name)."""

job_completed = Signal()
"""The task returned. Carries `attempt` (an `Attempt`)."""

job_retrying = Signal()
"""The attempt failed, or asked for it, and the job will run again. Carries `attempt` (an `Attempt`)."""

job_failed = Signal()
"""The last attempt failed. Carries `attempt` (an `Attempt`)."""

job_discarded = Signal()
"""The task raised `Discard`, or one of its `discard_on` errors. Carries `attempt` (an `Attempt`)."""

job_recovered = Signal()
"""A job was taken back from a worker that is gone. Carries `job` (a `RecoveredJob`)."""

lease_lost = Signal()
"""An outcome came too late: somebody took the job from its worker meanwhile. Carries `attempt` (an `Attempt`)."""

worker_started = Signal()
"""A worker process is about to claim its first job. Carries `worker_id`, `queue_names`, `concurrency`."""

worker_stopped = Signal()
"""A worker process has given back what it held and is about to exit. Carries `worker_id`, `jobs_done`."""


def announce(signal: Signal, sender: str, **event: Any) -> None:
    """Send `signal` to its receivers, and log those that raise, also what `send_robust` lets through: SystemExit."""
    try:
        for receiver, error in signal.send_robust(sender, **event):
            if isinstance(error, BaseException):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.error("The signal receiver %s raised: %r", name, error, exc_info=error)
    except BaseException as error:
        with contextlib.suppress(BaseException):  # the project's logging may be what raised
            logger.error("A signal receiver raised: %r", error, exc_info=error)

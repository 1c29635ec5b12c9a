"""The events of the queue, as Django signals.

Each event is sent with `send_robust`: a receiver that raises is logged and harms nothing. Sender is the task's name
(`job_…`, `lease_lost`), the worker's (`worker_…`), or the alias of the queue's database (`jobs_…`), so that a receiver
can be connected for one task alone. Events about an outcome are sent after the outcome has been committed.
"""

import contextlib
import logging
from typing import Any, ClassVar

from django.dispatch import Signal

from .exceptions import JobInterrupted

logger = logging.getLogger("django_skipqueue")


class QueueSignal(Signal):
    """A signal whose senders are names. A receiver may be connected for one task: `sender=send_receipt`, or its name.

    Django compares senders by identity, and two equal texts need not be the same object; so a sender is replaced by the
    one object that stands for its name.
    """

    _senders: ClassVar[dict[str, str]] = {}

    def connect(self, receiver: Any, sender: Any = None, weak: bool = True, dispatch_uid: Any = None) -> None:
        """See Django."""
        if not hasattr(receiver, "__qualname__"):  # Django's own log line about a receiver that raises asks for it
            with contextlib.suppress(AttributeError, TypeError):
                receiver.__qualname__ = type(receiver).__qualname__
        if sender is not None:
            name = getattr(sender, "name", sender)
            sender = self._senders.setdefault(name, name)
        super().connect(receiver, sender, weak, dispatch_uid)

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: Any = None) -> bool:
        """See Django."""
        return bool(super().disconnect(receiver, self._known(sender), dispatch_uid))

    def has_listeners(self, sender: Any = None) -> bool:
        """See Django."""
        return bool(self.receivers) and super().has_listeners(self._known(sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """See Django."""
        return super().send_robust(self._known(sender), **named)

    def _known(self, sender: Any) -> Any:
        name = getattr(sender, "name", sender)
        return self._senders.get(name, name)


job_deferred = QueueSignal()
"""Jobs were inserted; workers see them once the caller's transaction commits. Carries `queue_name`, `job_ids`."""

job_started = QueueSignal()
"""An attempt begins. Sent in the thread that runs it. Carries `job` (a `ClaimedJob`), `worker` (its name),
`wait_ms` (how long the job was due before)."""

job_completed = QueueSignal()
"""The task returned. Carries `attempt` (an `Attempt`)."""

job_retrying = QueueSignal()
"""The attempt failed, or asked for it, and the job will run again. Carries `attempt` (an `Attempt`)."""

job_failed = QueueSignal()
"""The last attempt failed. Carries `attempt` (an `Attempt`)."""

job_discarded = QueueSignal()
"""The task raised `Discard`, or one of its `discard_on` errors. Carries `attempt` (an `Attempt`)."""

job_cancelled = QueueSignal()
"""The attempt of a job that was cancelled while it ran has ended. Carries `attempt` (an `Attempt`)."""

job_recovered = QueueSignal()
"""A job was taken back from a worker that is gone. Carries `job` (a `RecoveredJob`)."""

lease_lost = QueueSignal()
"""An outcome came too late: somebody took the job from its worker meanwhile. Carries `attempt` (an `Attempt`)."""

jobs_admitted = QueueSignal()
"""Jobs whose time has come were let into their queues. Carries `counts`, by the name of the queue."""

jobs_released = QueueSignal()
"""Jobs that were claimed were given back, at no attempt. Carries `job_ids`."""

jobs_operated = QueueSignal()
"""Somebody has changed jobs by hand. Its sender is the verb. Carries `database`, `job_ids`, `by`, `reason`."""

jobs_pruned = QueueSignal()
"""Finished jobs were deleted. Carries `counts`, by status."""

worker_started = QueueSignal()
"""A worker process is about to claim its first job. Carries `worker_id`, `queue_names`, `concurrency`."""

worker_stopped = QueueSignal()
"""A worker process ends; what still runs is given back after that. Carries `worker_id`, `jobs_done`."""


def emit(signal: Signal, sender: str, **event: Any) -> None:
    """Send `signal` to its receivers, and log those that raise, also what `send_robust` lets through: SystemExit.

    Raises `JobInterrupted` alone, which is meant for the attempt that a receiver is called in.
    """
    try:
        for receiver, error in signal.send_robust(sender, **event):
            if isinstance(error, BaseException):
                name = getattr(receiver, "__qualname__", repr(receiver))
                logger.error("The signal receiver %s raised: %r", name, error, exc_info=error)
    except JobInterrupted:
        raise
    except BaseException as error:
        with contextlib.suppress(BaseException):  # the project's logging may be what raised
            logger.error("A signal receiver raised: %r", error, exc_info=error)
